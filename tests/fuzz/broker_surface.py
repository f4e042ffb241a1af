"""Random messages on the topics of a live server and pilot, as a client without restrictions publishes them."""

from __future__ import annotations

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from fuzz.mutation import Mutator
from fuzz.tally import Tally
from pilotage.mqtt.topics import EVERY_POOL, MAX_PAYLOAD_BYTES, WITHOUT_POOL, NodeStatus, Topics, wake_up_message
from support.mosquitto import MosquittoServer
from support.wire_grid import WireGrid

_TOPICS = Topics()
_UNACKNOWLEDGED = 500
_ACKNOWLEDGED_WITHIN_S = 60.0
_STRANGERS = 5000


class RandomMessages:
    """Publishes messages of living pilots and of strangers, most of them malformed."""

    def __init__(self, grid: WireGrid, broker: MosquittoServer, pilot: str, seed: int) -> None:
        self._seed = seed
        self._stamps = [pilot, *(grid.start_pilot().stamp for _ in range(3))]
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="fuzz")
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def run(self, inputs: range, tally: Tally) -> None:
        """Publish the messages with these numbers and wait until the broker has them."""
        for number in inputs:
            mutator = Mutator((self._seed, "messages", number))
            topic, payload = self._message(mutator)
            sent = self._client.publish(topic, payload, qos=1, retain=mutator.random.random() < 0.1)
            if number % _UNACKNOWLEDGED == 0 or number == inputs[-1]:
                sent.wait_for_publish(_ACKNOWLEDGED_WITHIN_S)
            tally.inputs += 1

    def _message(self, mutator: Mutator) -> tuple[str, bytes]:
        dice = mutator.random
        stranger = f"stranger{dice.randrange(_STRANGERS)}"
        stamp = dice.choice([*self._stamps, stranger, "s" * dice.randrange(1, 400)])
        if dice.random() < 0.2:
            return self._message_to_pilots(mutator, stamp)
        topic = _TOPICS.node(stamp if dice.random() < 0.9 else f"{stamp}/deeper")
        status = NodeStatus(stamp, "node1", "SITE/ce1/long", dice.random() < 0.8, dice.randrange(20))
        payload = status.message(_TOPICS).payload
        match dice.randrange(10):
            case 0:
                return topic, payload
            case 1:
                return topic, payload.replace(b'"slots":[]', b'"slots":' + b"[" * dice.randrange(MAX_PAYLOAD_BYTES))
            case 2:
                return topic, dice.randbytes(dice.randrange(100))
            case 3 if dice.random() < 0.01:
                return topic, bytes(MAX_PAYLOAD_BYTES + dice.randrange(-9, 100_000))
            case _:
                return topic, mutator.mutated(payload)

    def _message_to_pilots(self, mutator: Mutator, stamp: str) -> tuple[str, bytes]:
        pool = mutator.random.choice((WITHOUT_POOL, EVERY_POOL, "0" * 16))
        payload = wake_up_message(_TOPICS, pool, mutator.random.randrange(5), mutator.random.random()).payload
        topic = _TOPICS.poll(stamp) if mutator.random.random() < 0.1 else _TOPICS.pool(pool)
        return topic, mutator.mutated(payload)

    def __enter__(self) -> RandomMessages:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()
