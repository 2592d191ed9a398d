import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Moves records with Kafka's own clients, as a careful user would: nothing is parsed, batches are large, and an offset
 * is committed when its record is durable.
 *
 * <pre>
 * java Passthrough BOOTSTRAP SOURCE SINK COUNT BATCH_BYTES CODEC
 * </pre>
 */
public final class Passthrough {
    private static final long COMMIT_NANOS = Duration.ofSeconds(5).toNanos(); // as often as `enable.auto.commit` does

    private Passthrough() {}

    public static void main(final String[] args) throws Exception {
        final String sink = args[2];
        final long count = Long.parseLong(args[3]);
        final Map<String, Object> reading = Map.of(
                "bootstrap.servers", args[0],
                "group.id", sink + "-java",
                "auto.offset.reset", "earliest",
                "enable.auto.commit", "false",
                "isolation.level", "read_committed",
                "max.partition.fetch.bytes", 8_388_608, // with 1 MiB a single partition gives one batch at a time
                "max.poll.records", 5_000,
                "key.deserializer", ByteArrayDeserializer.class,
                "value.deserializer", ByteArrayDeserializer.class);
        final Map<String, Object> writing = Map.of(
                "bootstrap.servers", args[0],
                "acks", "all",
                "enable.idempotence", "true",
                "batch.size", Integer.parseInt(args[4]),
                "linger.ms", 5,
                "buffer.memory", 67_108_864L,
                "compression.type", args[5],
                "key.serializer", ByteArraySerializer.class,
                "value.serializer", ByteArraySerializer.class);
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(writing)) {
            final AtomicReference<Exception> failed = new AtomicReference<>();
            final Callback callback = (metadata, error) -> {
                if (error != null) {
                    failed.compareAndSet(null, error);
                }
            };
            consumer.subscribe(List.of(args[1]));
            long moved = 0;
            long committed = System.nanoTime();
            while (moved < count) {
                final ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofSeconds(1));
                for (final ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(
                            new ProducerRecord<>(
                                    sink,
                                    record.partition(),
                                    record.timestamp(),
                                    record.key(),
                                    record.value(),
                                    record.headers()),
                            callback);
                }
                moved += records.count();
                if (moved >= count || System.nanoTime() - committed >= COMMIT_NANOS) {
                    producer.flush();
                    if (failed.get() != null) {
                        throw failed.get();
                    }
                    consumer.commitSync();
                    committed = System.nanoTime();
                }
            }
            new CountDownLatch(1).await(); // until SIGTERM
        }
    }
}
