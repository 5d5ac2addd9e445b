"""A Redis Cluster of real servers: three primaries, each with a replica."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from redis.crc import key_slot

from tests.topology.line import Line
from tests.topology.node import DURABLE, HOST, Node, free_port, until
from tests.topology.whole import Topology

SLOTS = 16384
PRIMARIES = 3
NODE_TIMEOUT_MS = 1500


@dataclass(frozen=True)
class Member:
    """One node's entry in another node's view of the cluster."""

    name: str
    port: int
    flags: frozenset[str]
    primary: str
    slots: tuple[tuple[int, int], ...]

    def holds(self, slot: int) -> bool:
        return any(first <= slot <= last for first, last in self.slots)


@dataclass
class ValkeyCluster(Topology):
    """With `tls`, each node announces a line that speaks TLS too, as `url` does."""

    full_coverage: bool = False
    """Whether one partition without a primary closes all others, which is the servers' own default."""
    options: dict[str, str] = field(default_factory=dict)
    """Additional lines of every node's configuration."""
    _names: dict[str, Node] = field(default_factory=dict)
    _users: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def url(self, nodes: Iterable[Node] = (), user: str = "", password: str = "") -> str:
        """Return the address for the service's settings. It names all nodes, or only these."""
        return self.address("cluster", map(self.announced, nodes or self.nodes), user, password)

    def announced(self, node: Node) -> int:
        return self.lines[self.nodes.index(node)].port if self.lines else node.port

    def view(self, node: Node) -> list[Member]:
        return [_member(line) for line in node.ask("CLUSTER", "NODES").decode().splitlines()]

    @staticmethod
    def slot_of(key: str) -> int:
        return key_slot(key.encode())

    def primary_of(self, key: str | int) -> Node:
        """Wait until all living nodes agree which living node owns a key's slot. Return that node."""
        found: list[Node] = []

        def all_agree() -> bool:
            found[:] = self.owners(key)
            return len(found) == 1 and found[0].lives

        until(all_agree, f"{key} has a primary")
        return found[0]

    def owners(self, key: str | int) -> list[Node]:
        slot = key if isinstance(key, int) else self.slot_of(key)
        views = [self.view(node) for node in self._living()]
        names = {each.name for members in views for each in members if each.holds(slot)}
        return [self._names[name] for name in names]

    def replica_of(self, primary: Node) -> Node:
        name = self._name_of(primary)
        replicas = [self._names[each.name] for each in self.view(primary) if each.primary == name]
        return next(node for node in replicas if node.lives)

    def primaries(self) -> list[Node]:
        asked = self._living()[0]
        held = [self._names[each.name] for each in self.view(asked) if "master" in each.flags and each.slots]
        return [node for node in held if node.lives]

    def restart(self, node: Node) -> None:
        node.start()
        for name, rules in self._users.items():
            node.ask("ACL", "SETUSER", name, *rules)

    def roll(self) -> None:
        for node in sorted(self.nodes, key=lambda node: node in self.primaries()):
            if node in self.primaries():
                heir = self.replica_of(node)
                heir.ask("CLUSTER", "FAILOVER")
                until(lambda heir=heir: heir in self.primaries(), "the replica has taken over")  # type: ignore[misc]
                self.until_whole()
            node.kill()
            node.renumber()
            self.restart(node)
            self.until_whole()

    def until_whole(self) -> None:
        """Wait until all slots are served, every living node knows it, and every replica follows its primary."""
        until(lambda: all(self._is_settled(node) for node in self._living()), "the cluster is whole")

    def move(self, key: str, to: Node, *, atomically: bool = True) -> None:
        slot, source = self.slot_of(key), self.primary_of(key)
        if atomically:
            source.ask("CLUSTER", "MIGRATESLOTS", "SLOTSRANGE", slot, slot, "NODE", self._name_of(to))
        else:
            self.begin_move(slot, source, to)
            self.end_move(slot, source, to)
        until(lambda: self.primary_of(slot) is to, f"slot {slot} is moved")

    def begin_move(self, slot: int, source: Node, to: Node) -> None:
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", self._name_of(source))
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", self._name_of(to))

    def end_move(self, slot: int, source: Node, to: Node) -> None:
        secret = ["AUTH", self.password] if self.password else []
        while names := source.ask("CLUSTER", "GETKEYSINSLOT", slot, 10):
            source.ask("MIGRATE", HOST, to.port, "", 0, 5000, *secret, "KEYS", *names)
        for node in (to, source, *self.primaries()):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", self._name_of(to))

    def add_user(self, name: str, *rules: str) -> None:
        self._users[name] = ("reset", "on", *rules)
        for node in self._living():
            node.ask("ACL", "SETUSER", name, *self._users[name])

    def __post_init__(self) -> None:
        if self.tls:
            self.lines = [Line(tls=self.tls) for _ in range(2 * PRIMARIES)]
        for number in range(2 * PRIMARIES):
            announced = {"cluster-announce-client-port": str(self.lines[number].port)} if self.lines else {}
            options = {
                **DURABLE,
                "cluster-enabled": "yes",
                "cluster-port": str(free_port()),
                "cluster-node-timeout": str(NODE_TIMEOUT_MS),
                "cluster-require-full-coverage": "yes" if self.full_coverage else "no",
                "cluster-allow-replica-migration": "no",
                **announced,
                **self.options,
            }
            self.nodes.append(Node(self.folder / f"node-{number}", options, self.password))

    def start(self) -> None:
        for node in self.nodes:
            node.spawn()
        for node in self.nodes:
            node.until_up()
        for line, node in zip(self.lines, self.nodes, strict=False):
            line.open(node.port)
        share = SLOTS // PRIMARIES + 1
        for number, node in enumerate(self.nodes):
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            if number < PRIMARIES:
                last = min((number + 1) * share, SLOTS) - 1
                node.ask("CLUSTER", "ADDSLOTSRANGE", number * share, last)
            self._names[node.ask("CLUSTER", "MYID").decode()] = node
        for one in self.nodes:
            for other in self.nodes[: self.nodes.index(one)]:
                one.ask("CLUSTER", "MEET", HOST, other.port, other.options["cluster-port"])
        until(self._all_have_met, "all nodes have met")
        for primary, replica in zip(self.nodes[:PRIMARIES], self.nodes[PRIMARIES:], strict=True):
            replica.ask("CLUSTER", "REPLICATE", self._name_of(primary))
        self.until_whole()

    def _all_have_met(self) -> bool:
        return all(
            {each.name for each in self.view(node) if "handshake" not in each.flags} == set(self._names)
            for node in self.nodes
        )

    def _living(self) -> list[Node]:
        return [node for node in self.nodes if node.lives]

    def _name_of(self, node: Node) -> str:
        return next(name for name, known in self._names.items() if known is node)

    def _is_settled(self, node: Node) -> bool:
        """Return whether a node serves all slots with the others, and follows its primary or is followed."""
        with node.client() as client:
            told = client.execute_command("CLUSTER", "INFO").decode().splitlines()
            about = client.info("replication")
        known = dict(line.split(":") for line in told if line)
        if (known["cluster_state"], known["cluster_slots_ok"]) != ("ok", str(SLOTS)):
            return False
        members = {self._names[each.name]: each for each in self.view(node)}
        living = [members[each] for each in self._living()]
        if len([each for each in living if each.primary in self._names]) != len(living) - PRIMARIES:
            return False
        if any(flag.startswith("fail") for each in living for flag in each.flags):
            return False
        if about["role"] == "slave":
            return bool(about["master_link_status"] == "up")
        online = [value for value in about.values() if isinstance(value, dict) and value.get("state") == "online"]
        return len(online) == len([each for each in living if each.primary == self._name_of(node)])


def _member(line: str) -> Member:
    name, place, flags, primary, _ping, _pong, _epoch, _link, *slots = line.split()
    ranges = [part.partition("-") for part in slots if not part.startswith("[")]
    port = int(place.split("@")[0].rsplit(":", 1)[1])
    held = tuple((int(first), int(last or first)) for first, _, last in ranges)
    return Member(name, port, frozenset(flags.split(",")), primary, held)
