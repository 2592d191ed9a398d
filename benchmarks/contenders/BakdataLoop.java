import com.bakdata.kafka.LargeMessageDeserializer;
import com.bakdata.kafka.LargeMessageSerializer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Serdes;

/**
 * Moves records with Kafka's own clients and bakdata's serializer, or its deserializer. A call of either waits for S3, so
 * there are several threads, each with its own partitions, as in Kafka Streams.
 *
 * <pre>
 * java BakdataLoop offload|inflate BOOTSTRAP SOURCE SINK COUNT ENDPOINT BASE_PATH THREADS
 * </pre>
 *
 * <p>Credentials and region come in the environment, for command lines are public.
 */
public final class BakdataLoop {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final int FETCH_BYTES = 16 * 1024 * 1024;

    private final Map<String, Object> reading = new HashMap<>();
    private final Map<String, Object> writing = new HashMap<>();
    private final String source;
    private final String sink;
    private final long count;
    private final AtomicLong moved = new AtomicLong();
    private final AtomicReference<Throwable> failed = new AtomicReference<>();

    private BakdataLoop(final String[] args) {
        final boolean offload = args[0].equals("offload");
        source = args[2];
        sink = args[3];
        count = Long.parseLong(args[4]);
        final Map<String, Object> common = Map.of(
                "bootstrap.servers", args[1],
                "large.message.s3.endpoint", args[5],
                "large.message.s3.region", System.getenv("AWS_DEFAULT_REGION"),
                "large.message.s3.access.key", System.getenv("AWS_ACCESS_KEY_ID"),
                "large.message.s3.secret.key", System.getenv("AWS_SECRET_ACCESS_KEY"),
                "large.message.s3.path.style.access", true,
                "large.message.base.path", args[6],
                "large.message.key.serde", Serdes.ByteArraySerde.class,
                "large.message.value.serde", Serdes.ByteArraySerde.class);
        reading.putAll(common);
        reading.put("group.id", sink + "-bakdata");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("isolation.level", "read_committed");
        reading.put("max.partition.fetch.bytes", FETCH_BYTES);
        reading.put("fetch.max.bytes", FETCH_BYTES);
        reading.put("key.deserializer", ByteArrayDeserializer.class);
        reading.put("value.deserializer", offload ? ByteArrayDeserializer.class : LargeMessageDeserializer.class);
        writing.putAll(common);
        writing.put("acks", "all");
        writing.put("enable.idempotence", "true");
        writing.put("max.request.size", Integer.MAX_VALUE);
        writing.put("buffer.memory", 4L * FETCH_BYTES);
        writing.put("key.serializer", ByteArraySerializer.class);
        writing.put("value.serializer", offload ? LargeMessageSerializer.class : ByteArraySerializer.class);
    }

    public static void main(final String[] args) throws Exception {
        final BakdataLoop loop = new BakdataLoop(args);
        final int threads = Integer.parseInt(args[7]);
        final List<Thread> started = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            final int own = number;
            final Thread thread = new Thread(() -> loop.run(own, threads));
            thread.start();
            started.add(thread);
        }
        for (final Thread thread : started) {
            thread.join();
        }
        if (loop.failed.get() != null) {
            loop.failed.get().printStackTrace();
            System.exit(1);
        }
        new CountDownLatch(1).await(); // until SIGTERM
    }

    private void run(final int own, final int threads) {
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(reading);
                KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(writing)) {
            // Assigned by hand: members that join one after the other would move partitions, and send records twice.
            final List<TopicPartition> partitions = consumer.partitionsFor(source).stream()
                    .filter(info -> info.partition() % threads == own)
                    .map(info -> new TopicPartition(source, info.partition()))
                    .toList();
            consumer.assign(partitions);
            while (moved.get() < count && failed.get() == null) {
                final ConsumerRecords<byte[], byte[]> records = consumer.poll(POLL);
                for (final ConsumerRecord<byte[], byte[]> record : records) {
                    producer.send(
                            new ProducerRecord<>(
                                    sink,
                                    record.partition(),
                                    record.timestamp(),
                                    record.key(),
                                    record.value(),
                                    record.headers()),
                            (metadata, error) -> {
                                if (error != null) {
                                    failed.compareAndSet(null, error);
                                }
                            });
                }
                moved.addAndGet(records.count());
            }
            producer.flush();
            consumer.commitSync();
        } catch (final Throwable error) { // out of memory is no Exception
            failed.compareAndSet(null, error);
        }
    }
}
