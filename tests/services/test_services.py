"""The services are what they claim to be."""

from confluent_kafka import Consumer, Producer

from tests.services.kafka import Kafka


def read_all(kafka: Kafka, topic: str, count: int) -> list[bytes | None]:
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
        | {"session.timeout.ms": 6000}
    )
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    try:
        while len(values) < count:
            messages = consumer.consume(count - len(values), timeout=30)
            assert messages, f"{len(values)} of {count} messages came"
            values += [message.value() for message in messages]
    finally:
        consumer.close()
    return values


def test_kafka_gives_back_a_message_near_its_size_limit(kafka: Kafka) -> None:
    topic = kafka.topic(partitions=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2_097_152})
    sent = [b"x" * 2_000_000, b"small"]
    for value in sent:
        producer.produce(topic, value)
    assert producer.flush(30) == 0
    assert set(read_all(kafka, topic, 2)) == set(sent)


def test_topics_never_share_a_name(kafka: Kafka) -> None:
    assert len({kafka.topic(), kafka.topic(), kafka.topic()}) == 3
