"""Random messages on the topics of a live server's broker, as a client without restrictions publishes them."""

from __future__ import annotations

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from fuzz.mutation import Mutator
from fuzz.server_surface import Tally
from pilotage.mqtt.topics import MAX_PAYLOAD_BYTES, NodeStatus, Topics
from support.mosquitto import MosquittoServer
from support.wire_grid import WireGrid

TOPICS = Topics()
UNACKNOWLEDGED = 500
ACKNOWLEDGED_WITHIN_S = 60.0


class RandomMessages:
    """Publishes nodes' messages, most of them malformed, of living pilots and of strangers."""

    def __init__(self, grid: WireGrid, broker: MosquittoServer, seed: int) -> None:
        self._seed = seed
        self._stamps = [grid.start_pilot().stamp for _ in range(3)]
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id="fuzz")
        self._client.connect("127.0.0.1", broker.port)
        self._client.loop_start()

    def run(self, inputs: int, start: int, tally: Tally) -> None:
        """Publish this number of messages and wait until the broker has them."""
        for number in range(start, start + inputs):
            mutator = Mutator((self._seed, "mqtt", number))
            topic, payload = self._message(mutator)
            sent = self._client.publish(topic, payload, qos=1, retain=mutator.random.random() < 0.1)
            if number % UNACKNOWLEDGED == 0 or number == start + inputs - 1:
                sent.wait_for_publish(ACKNOWLEDGED_WITHIN_S)
            tally.inputs += 1

    def _message(self, mutator: Mutator) -> tuple[str, bytes]:
        dice = mutator.random
        stamp = dice.choice([*self._stamps, f"stranger{dice.randrange(5000)}", "s" * dice.randrange(1, 400)])
        topic = dice.choice([TOPICS.node(stamp)] * 8 + [TOPICS.node(f"{stamp}/deeper"), TOPICS.poll(stamp)])
        status = NodeStatus(stamp, "node1", "SITE/ce1/long", dice.random() < 0.8, dice.randrange(20))
        payload = status.message(TOPICS).payload
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

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()
