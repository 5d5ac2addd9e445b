"""Primary with replicas that three sentinels watch, and the partition that cuts it from all except its clients."""

from dataclasses import dataclass, field

from tests.topology.line import Line
from tests.topology.node import DURABLE, HOST, Node, until
from tests.topology.whole import Topology

SERVICE = "main"
SENTINELS, QUORUM = 3, 2
DOWN_AFTER_MS, FAILOVER_TIMEOUT_MS = 1000, 3000
INSIDE = "127.0.0.2"  # address of servers and sentinels; clients come from 127.0.0.1
# With a sentinel's default periods, a healed partition takes ten seconds.
HASTE = "INFO-PERIOD 500 PUBLISH-PERIOD 300 ASK-PERIOD 300".split()


@dataclass
class Sentinels(Topology):
    """Primary with replicas that three sentinels watch.

    All traffic to a server goes through its line. A partition cuts connections from `INSIDE`, so that the server is
    alone with its clients. With `tls`, the lines of servers and sentinels speak it too, as `url` does.
    """

    replicas: int = 1
    sentinels: list[Node] = field(default_factory=list)
    sentinel_lines: list[Line] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = [Line(self.tls) for _ in range(1 + self.replicas)]
        self.nodes = [self._server(number, line) for number, line in enumerate(self.lines)]

    def end(self) -> None:
        for sentinel in self.sentinels:
            sentinel.kill()
        super().end()
        for line in self.sentinel_lines:
            line.close()

    def url(self, service: str = SERVICE, db: int = 0, user: str = "", password: str = "") -> str:
        ports = (each.port for each in (self.sentinel_lines or self.sentinels))
        return f"{self.address('sentinel', ports, user, password)}/{service}/{db}"

    def primary(self) -> Node:
        ports = [self._seen_by(sentinel) for sentinel in self.sentinels if sentinel.lives]
        port = max(ports, key=ports.count)
        return next(node for node, line in zip(self.nodes, self.lines, strict=True) if line.port == port)

    def partition(self, node: Node) -> None:
        """Cut a server silently from sentinels and servers. Clients still reach it."""
        self.lines[self.nodes.index(node)].cut(INSIDE)

    def heal(self, node: Node) -> None:
        self.lines[self.nodes.index(node)].mend(INSIDE)

    def until_failover(self, old: Node) -> Node:
        """Wait until all sentinels know another primary that takes writes. Return that primary."""

        def is_over() -> bool:
            new = self.primary()
            agree = {self._seen_by(sentinel) for sentinel in self.sentinels if sentinel.lives}
            return len(agree) == 1 and new is not old and new.ask("ROLE")[0] == b"master"

        until(is_over, "another primary")
        return self.primary()

    def until_whole(self) -> None:
        until(self._is_whole, "all follow the primary")

    def _is_whole(self) -> bool:
        primary = self.primary()
        with primary.client() as client:
            about = client.info("replication")
        others = [node for node in self.nodes if node.lives and node is not primary]
        line = self.lines[self.nodes.index(primary)]
        following = [node.ask("ROLE") for node in others]
        online = [value for name, value in about.items() if name.startswith("slave") and isinstance(value, dict)]
        return (
            all(role[0] == b"slave" and role[2] == line.port and role[3] == b"connected" for role in following)
            and len([value for value in online if value["state"] == "online"]) == len(others)
            and about["role"] == "master"
        )

    def _seen_by(self, sentinel: Node) -> int:
        return int(sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)[1])

    def _server(self, number: int, line: Line) -> Node:
        options = {
            **DURABLE,
            "bind-source-addr": INSIDE,
            "replica-announce-ip": HOST,
            "replica-announce-port": str(line.port),
        }
        if number:
            options["replicaof"] = f"{HOST} {self.lines[0].port}"
        return Node(self.folder / f"server-{number}", options, self.password)

    def _sentinel(self, number: int) -> Node:
        first = [f"sentinel monitor {SERVICE} {HOST} {self.lines[0].port} {QUORUM}"]
        if self.password:
            first.append(f"sentinel auth-pass {SERVICE} {self.password}")
        lines = (
            *first,
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} {FAILOVER_TIMEOUT_MS}",
            f"sentinel announce-ip {HOST}",
        )
        options = {"bind-source-addr": INSIDE}
        return Node(self.folder / f"sentinel-{number}", options, arguments=("--sentinel",), lines=lines)

    def start(self) -> None:
        for node, line in zip(self.nodes, self.lines, strict=True):
            line.open(node.port)
            node.spawn()
        for node in self.nodes:
            node.until_up()
        self.sentinels = [self._sentinel(number) for number in range(SENTINELS)]
        for sentinel in self.sentinels:
            sentinel.spawn()
        for sentinel in self.sentinels:
            sentinel.until_up()
            sentinel.ask("SENTINEL", "DEBUG", *HASTE)
            if self.tls:
                self.sentinel_lines.append(Line(self.tls))
                self.sentinel_lines[-1].open(sentinel.port)
        until(self._all_know_each_other, "the sentinels know each other and the replicas")
        self.until_whole()

    def _all_know_each_other(self) -> bool:
        for sentinel in self.sentinels:
            known = sentinel.ask("SENTINEL", "REPLICAS", SERVICE), sentinel.ask("SENTINEL", "SENTINELS", SERVICE)
            if (len(known[0]), len(known[1])) != (self.replicas, SENTINELS - 1):
                return False
        return True
