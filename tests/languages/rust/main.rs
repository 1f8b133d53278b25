//! Rust: apache-avro.

use apache_avro::{reader::datum::GenericDatumReader, types::Value, Schema};
use std::io::Write;
use std::path::Path;

fn quoted(text: &str) -> String {
    let encoded = text.bytes().map(|byte| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => (byte as char).to_string(),
        _ => format!("%{byte:02x}"),
    });
    format!("'{}'", encoded.collect::<String>())
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Boolean(value) => value.to_string(),
        Value::Int(value) | Value::Date(value) | Value::TimeMillis(value) => value.to_string(),
        Value::Long(value)
        | Value::TimeMicros(value)
        | Value::TimestampMillis(value)
        | Value::TimestampMicros(value)
        | Value::LocalTimestampMillis(value)
        | Value::LocalTimestampMicros(value) => value.to_string(),
        Value::Float(value) => format!("f{:016x}", f64::from(*value).to_bits()),
        Value::Double(value) => format!("f{:016x}", value.to_bits()),
        Value::String(value) => quoted(value),
        Value::Bytes(value) => format!("x{}", hex(value)),
        Value::Decimal(value) => format!("x{}", hex(&Vec::<u8>::try_from(value).unwrap())),
        Value::Union(_, value) => text(value),
        Value::Array(items) => format!("[{}]", items.iter().map(text).collect::<Vec<_>>().join(",")),
        Value::Record(fields) => {
            let fields = fields.iter().map(|(name, value)| format!("{}={}", quoted(name), text(value)));
            format!("[{}]", fields.collect::<Vec<_>>().join(","))
        }
        other => panic!("{other:?} is of a type that no schema of Millrace has"),
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).expect("a folder");
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for number in 0.. {
        let path = Path::new(&folder).join(format!("{number}.avsc"));
        if !path.exists() {
            break;
        }
        let schema = Schema::parse_str(&std::fs::read_to_string(&path)?)?;
        let reader = GenericDatumReader::builder(&schema).build()?;
        let records = std::fs::read(path.with_extension("records"))?;
        let mut rest = &records[..];
        while !rest.is_empty() {
            let (head, body) = rest.split_at(4);
            let (mut record, after) = body.split_at(u32::from_be_bytes(head.try_into()?) as usize);
            let value = reader.read_value(&mut record)?;
            assert!(record.is_empty(), "bytes are left over");
            writeln!(out, "{number} {}", text(&value))?;
            rest = after;
        }
    }
    Ok(())
}
