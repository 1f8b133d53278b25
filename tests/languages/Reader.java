// Java: org.apache.avro with its conversion of decimals.

import java.io.BufferedWriter;
import java.io.OutputStreamWriter;
import java.math.BigDecimal;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import org.apache.avro.Conversions;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;

class Reader {
    public static void main(String[] arguments) throws Exception {
        var model = new GenericData();
        model.addLogicalTypeConversion(new Conversions.DecimalConversion());
        var folder = Path.of(arguments[0]);
        var out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        for (int number = 0; Files.exists(folder.resolve(number + ".avsc")); number++) {
            var schema = new Schema.Parser().parse(Files.readString(folder.resolve(number + ".avsc")));
            var newest = folder.resolve(number + ".newest");
            var by = Files.exists(newest) ? new Schema.Parser().parse(Files.readString(newest)) : schema;
            var reader = model.createDatumReader(schema, by);
            var records = ByteBuffer.wrap(Files.readAllBytes(folder.resolve(number + ".records")));
            while (records.hasRemaining()) {
                var data = new byte[records.getInt()];
                records.get(data);
                var decoder = DecoderFactory.get().binaryDecoder(data, null);
                Object value = reader.read(null, decoder);
                if (!decoder.isEnd()) {
                    throw new IllegalStateException("bytes are left over");
                }
                out.write(number + " " + text(value) + "\n");
            }
        }
        out.flush();
    }

    static String text(Object value) {
        if (value instanceof GenericRecord record) {
            var fields = record.getSchema().getFields().stream();
            return fields.map(f -> quoted(f.name()) + "=" + text(record.get(f.pos()))).toList().toString().replace(" ", "");
        }
        if (value instanceof Iterable<?> items) {
            var texts = new java.util.ArrayList<String>();
            items.forEach(item -> texts.add(text(item)));
            return texts.toString().replace(" ", "");
        }
        if (value instanceof ByteBuffer bytes) {
            var data = new byte[bytes.remaining()];
            bytes.duplicate().get(data);
            return "x" + HexFormat.of().formatHex(data);
        }
        if (value instanceof CharSequence characters) {
            return quoted(characters.toString());
        }
        if (value instanceof BigDecimal decimal) {
            return "d" + decimal.unscaledValue();
        }
        if (value instanceof Float || value instanceof Double) {
            return String.format("f%016x", Double.doubleToRawLongBits(((Number) value).doubleValue()));
        }
        return String.valueOf(value); // null, true, false, 1
    }

    static String quoted(String characters) {
        var text = new StringBuilder("'");
        for (byte each : characters.getBytes(StandardCharsets.UTF_8)) {
            text.append(Character.isLetterOrDigit(each & 0xff) && each > 0 ? "" + (char) each : String.format("%%%02x", each));
        }
        return text + "'";
    }
}
