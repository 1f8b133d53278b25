// Write each transaction of two tables as one record: see docs/consumers.md.
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.URISyntaxException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericDatumReader;
import org.apache.avro.generic.GenericRecord;
import org.apache.avro.io.DecoderFactory;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.serialization.StringSerializer;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

class View implements Processor<byte[], byte[], String, String> {
    static final Set<String> TABLES = Set.of("shop.accounts", "shop.savings");
    static final List<String> TOPICS = List.of("shop.transactions", "shop.shop.accounts", "shop.shop.savings");

    public static void main(String[] arguments) {
        var settings = new Properties();
        settings.putAll(Map.of(
            "application.id", "view",
            "bootstrap.servers", "kafka:9092",
            "processing.guarantee", "exactly_once_v2"));
        var bytes = Serdes.ByteArray();
        var text = Serdes.String();
        var builder = new StreamsBuilder()
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("changes"), text, bytes))
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("counts"), text, Serdes.Long()))
            .addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("ends"), text, text));
        builder.stream(TOPICS, Consumed.with(bytes, bytes))
            .filter((key, value) -> value != null)
            .repartition(Repartitioned.with(bytes, bytes).withName("merged").withNumberOfPartitions(1))
            .process(View::new, "changes", "counts", "ends")
            .to("shop-commits", Produced.with(text, text));
        var streams = new KafkaStreams(builder.build(), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    ProcessorContext<String, String> context;
    KeyValueStore<String, byte[]> changes; // by transaction and number
    KeyValueStore<String, Long> counts; // of changes, by transaction
    KeyValueStore<String, String> ends; // count and transaction, by number
    long first;
    long next;

    @Override
    public void init(ProcessorContext<String, String> context) {
        this.context = context;
        changes = context.getStateStore("changes");
        counts = context.getStateStore("counts");
        ends = context.getStateStore("ends");
        try (var waiting = ends.all()) {
            while (waiting.hasNext()) {
                var number = Long.parseLong(waiting.next().key);
                first = next == 0 ? number : first;
                next = number + 1;
            }
        }
    }

    @Override
    public void process(Record<byte[], byte[]> record) {
        var value = read(record.value());
        var redriven = record.headers().lastHeader("redriven") == null ? "" : "redriven ";
        if (value.hasField("op")) {
            if (value.get("transaction") instanceof GenericRecord transaction && !value.get("op").toString().equals("r")) {
                var id = redriven + transaction.get("id") + " ";
                changes.put(id + number((long) transaction.get("total_order")), record.value());
                counts.put(id, count(id) + 1);
            }
        } else if (value.get("status").toString().equals("END")) {
            long count = 0;
            if (value.get("data_collections") instanceof List<?> tables) {
                for (var each : tables) {
                    var table = (GenericRecord) each;
                    count += TABLES.contains(table.get("data_collection").toString()) ? (long) table.get("event_count") : 0;
                }
            }
            ends.put(number(next++), count + " " + redriven + value.get("id") + " ");
        }
        for (var end = ends.get(number(first)); end != null; end = ends.get(number(first))) {
            var id = end.substring(end.indexOf(" ") + 1);
            if (count(id) < Long.parseLong(end.substring(0, end.indexOf(" ")))) {
                return;
            }
            var rows = new ArrayList<String>();
            try (var found = changes.prefixScan(id, new StringSerializer())) {
                while (found.hasNext()) {
                    var change = found.next();
                    rows.add(read(change.value).toString()); // JSON
                    changes.delete(change.key);
                }
            }
            context.forward(new Record<>(id.strip(), rows.toString(), record.timestamp()));
            counts.delete(id);
            ends.delete(number(first++));
        }
    }

    long count(String id) {
        var count = counts.get(id);
        return count == null ? 0 : count;
    }

    static String number(long number) {
        return String.format("%019d", number);
    }

    static final Map<Integer, Schema> SCHEMAS = new ConcurrentHashMap<>();

    static GenericRecord read(byte[] value) {
        try {
            var schema = SCHEMAS.computeIfAbsent(ByteBuffer.wrap(value, 1, 4).getInt(), View::schema);
            var decoder = DecoderFactory.get().binaryDecoder(value, 5, value.length - 5, null);
            return new GenericDatumReader<GenericRecord>(schema).read(null, decoder);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static Schema schema(int id) {
        try {
            var answer = new ObjectMapper().readTree(new URI("http://registry:8081/schemas/ids/" + id).toURL());
            return new Schema.Parser().parse(answer.get("schema").asText());
        } catch (IOException | URISyntaxException error) {
            throw new IllegalStateException(error);
        }
    }
}
