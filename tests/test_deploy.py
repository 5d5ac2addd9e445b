"""deploy/, rendered: its parts fit each other and the service, and its very commands serve, drain and hand over."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import RedisError

from app import __version__
from app.process import CLOSE_S
from app.settings import PREFIX, Settings
from app.stores.embedded import find_binary
from app.stores.refusals import RIGHTS
from tests.images import bare, started
from tests.manifests import Overlay, Pod
from tests.service import ROOT
from tests.test_store import until
from tools.deploy_check import OVERLAYS, kustomize, make_secrets, render

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx2

    from tests.images import Container, Image
    from tests.manifests import Manifest

pytestmark = pytest.mark.timeout(300)  # whoever comes first builds the image, and others wait for that

DEPLOY = ROOT / "deploy"
ROLES = ("web", "work")
STORE, USER = "smolsessions-store:6379", "smolsessions"


@dataclass(frozen=True)
class Rendered:
    """All overlays, and the API key that the operator was shown."""

    overlays: dict[str, Overlay]
    key: str

    def __getitem__(self, name: str) -> Overlay:
        return self.overlays[name]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    folder = tmp_path_factory.mktemp("rendered")
    key = make_secrets(folder / "secrets")
    return Rendered({name: Overlay.read(text) for name, text in render(folder, folder / "secrets").items()}, key)


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, rendered: Rendered) -> Overlay:
    return rendered[request.param]


# ------------------------------------------------------------------------------------------------- what fits what


def test_web_and_work_are_one_image_in_two_roles(overlay: Overlay) -> None:
    pods = [overlay.pod(f"smolsessions-{role}") for role in ROLES]
    assert [pod.arguments for pod in pods] == [[role] for role in ROLES]
    assert [pod.command for pod in pods] == [[], []]
    assert len({pod.container["image"] for pod in pods}) == 1


def test_the_image_is_of_this_release(rendered: Rendered) -> None:
    tags = {name: rendered[name].pod("smolsessions-web").container["image"].rpartition(":")[2] for name in OVERLAYS}
    assert tags == {"dev": "dev", "production": __version__, "site": __version__, "ingress": __version__}


def test_pods_are_restricted_and_know_nothing_of_the_cluster(overlay: Overlay) -> None:
    for pod in overlay.pods():
        spec, security = pod.spec, pod.container["securityContext"]
        assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert pod.container["resources"]["limits"].keys() == {"memory"}
        assert pod.container["resources"]["requests"].keys() == {"cpu", "memory"}


def test_probes_ask_the_declared_port_and_the_process_alone(overlay: Overlay) -> None:
    default = Settings.model_fields["port"].default
    for role in ROLES:
        pod = overlay.pod(f"smolsessions-{role}")
        assert pod.ports == {"http": default}
        assert {kind: probe["httpGet"] for kind, probe in pod.probes.items()} == {
            "startup": {"path": "/livez", "port": "http"},
            "liveness": {"path": "/livez", "port": "http"},
            "readiness": {"path": "/readyz", "port": "http"},
        }


def test_the_grace_is_longer_than_all_that_ending_may_take(overlay: Overlay) -> None:
    for role in ROLES:
        pod = overlay.pod(f"smolsessions-{role}")
        drain_s = float(pod.environment.get(f"{PREFIX}DRAIN_S", Settings.model_fields["drain_s"].default))
        assert pod.grace_s >= pod.pre_stop_s + drain_s + CLOSE_S
    assert overlay.pod("smolsessions-web").pre_stop_s == 10


def test_updates_and_drains_go_pod_by_pod_and_never_below_what_was_there(overlay: Overlay) -> None:
    for role in ROLES:
        pod = overlay.pod(f"smolsessions-{role}")
        assert pod.workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        budget = overlay.one("PodDisruptionBudget", pod.name)["spec"]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")
        assert matches(budget["selector"], pod)
        spread = pod.spec["topologySpreadConstraints"]
        assert [each["topologyKey"] for each in spread] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
        for each in spread:
            assert each["matchLabelKeys"] == ["pod-template-hash"]
            assert matches(each["labelSelector"], pod)


def test_selectors_find_their_pods_and_no_others(overlay: Overlay) -> None:
    pods = overlay.pods()
    for pod in pods:
        assert [other.name for other in pods if matches(pod.workload["spec"]["selector"], other)] == [pod.name]
    for service in overlay.all("Service"):
        name, ports = service["metadata"]["name"], service["spec"]["ports"]
        (pod,) = (pod for pod in pods if matches({"matchLabels": service["spec"]["selector"]}, pod))
        assert name == pod.name
        assert name != "smolsessions"  # its links would set SMOLSESSIONS_PORT
        assert {port["targetPort"] for port in ports} <= pod.ports.keys()


def matches(selector: Manifest, pod: Pod) -> bool:
    labels, rules = selector.get("matchLabels", {}), selector.get("matchExpressions", [])
    assert all(rule["operator"] == "In" for rule in rules)
    return labels.items() <= pod.labels.items() and all(pod.labels.get(rule["key"]) in rule["values"] for rule in rules)


def test_only_what_a_policy_names_is_let_in_and_out(overlay: Overlay) -> None:
    policies = [policy["spec"] for policy in overlay.all("NetworkPolicy")]
    assert {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]} in policies
    web, work = (overlay.pod(f"smolsessions-{role}") for role in ROLES)
    assert {"http", 8000} & ports_of(policies, "ingress", web)
    for pod in (web, work):
        out = ports_of(policies, "egress", pod)
        assert {53} <= out
        assert {"store", 6379} & out
        assert (443 in out) is (pod is work)
    store = [pod for pod in overlay.pods() if pod.name == "smolsessions-store"]
    assert [ports_of(policies, "egress", pod) for pod in store] == [{53}] * len(store)


def ports_of(policies: list[Manifest], way: str, pod: Pod) -> set[int | str]:
    rules = (rule for policy in policies if matches(policy["podSelector"], pod) for rule in policy.get(way, []))
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_what_is_named_in_deploy_is_a_setting() -> None:
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields}
    files = [*DEPLOY.rglob("*.yaml"), ROOT / "Dockerfile", ROOT / "docs" / "deploying.md"]
    named = {word: file for file in files for word in re.findall(rf"{PREFIX}[A-Z_]+", file.read_text())}
    assert {word: str(file) for word, file in named.items() if word not in known} == {}
    assert len(named) > 8


def test_files_that_settings_name_are_mounted_from_secrets(rendered: Rendered) -> None:
    for name in ("dev", "site"):
        for role in ROLES:
            pod = rendered[name].pod(f"smolsessions-{role}")
            named = {setting: path for setting, path in pod.environment.items() if setting.endswith("_FILE")}
            files = pod.files()
            assert named.keys() >= {f"{PREFIX}SEAL_KEYS_FILE", f"{PREFIX}REDIS_PASSWORD_FILE"}
            assert (f"{PREFIX}API_KEYS_FILE" in named) is (role == "web")
            assert set(named.values()) == files.keys()
            assert all(files.values())
            secret = {content.decode().strip() for content in files.values()}
            manifests = yaml.safe_dump(rendered[name].all("Deployment", "StatefulSet", "ConfigMap"))
            assert [word for word in secret if word in manifests] == []


def test_a_new_seal_key_rolls_the_pods_and_a_new_api_key_does_not(rendered: Rendered) -> None:
    for name in ("dev", "site"):
        secrets = {secret["metadata"]["name"] for secret in rendered[name].all("Secret")}
        assert {"smolsessions-api-keys", "smolsessions-store"} <= secrets
        assert [each for each in secrets if re.fullmatch(r"smolsessions-seal-keys-\w{10}", each)]


def test_the_number_of_workers_follows_busy_threads_and_the_queues_age(rendered: Rendered) -> None:
    production = rendered["production"]
    scaler = production.one("HorizontalPodAutoscaler", "smolsessions-work")["spec"]
    target = production.one(scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"])
    assert "replicas" not in target["spec"]  # else each `apply` undoes what the scaler did
    assert metrics_of(scaler) == {"smolsessions_threads_busy", "smolsessions_queue_oldest_seconds"}
    threads = Settings.model_fields["threads"].default
    assert float(scaler["metrics"][0]["pods"]["target"]["averageValue"]) == threads * 3 / 4
    down = scaler["behavior"]["scaleDown"]
    assert down["stabilizationWindowSeconds"] >= 300
    assert [policy["value"] for policy in down["policies"]] == [1]


def metrics_of(scaler: Manifest) -> set[str]:
    return {metric[metric["type"].lower()]["metric"]["name"] for metric in scaler["metrics"]}


def test_the_route_leads_to_the_service_and_cuts_no_stream(rendered: Rendered) -> None:
    for name in ("production", "site"):
        route = rendered[name].one("HTTPRoute", "smolsessions")
        assert route["apiVersion"] == "gateway.networking.k8s.io/v1"
        assert route["spec"].keys() == {"parentRefs", "hostnames", "rules"}
        (rule,) = route["spec"]["rules"]
        assert rule["timeouts"] == {"request": "0s"}
        (backend,) = rule["backendRefs"]
        service = rendered[name].one("Service", backend["name"])
        assert backend["port"] in {port["port"] for port in service["spec"]["ports"]}


def test_an_ingress_leads_to_the_service_where_it_is_asked_for(rendered: Rendered) -> None:
    (rule,) = rendered["ingress"].one("Ingress", "smolsessions")["spec"]["rules"]
    (path,) = rule["http"]["paths"]
    service = rendered["ingress"].one("Service", path["backend"]["service"]["name"])
    assert path["backend"]["service"]["port"]["name"] in {port["name"] for port in service["spec"]["ports"]}
    assert rendered["production"].all("Ingress", "PodMonitor") == []


def test_metrics_are_read_from_each_pod_that_plays_or_serves(rendered: Rendered) -> None:
    monitor = rendered["site"].one("PodMonitor", "smolsessions")["spec"]
    assert monitor.keys() == {"selector", "podMetricsEndpoints"}
    (endpoint,) = monitor["podMetricsEndpoints"]
    pods = [pod for pod in rendered["site"].pods() if matches(monitor["selector"], pod)]
    assert {pod.name for pod in pods} == {f"smolsessions-{role}" for role in ROLES}
    assert all(endpoint["port"] in pod.ports for pod in pods)
    assert endpoint["path"] == "/metrics"


def test_the_store_pod_keeps_what_it_is_given(rendered: Rendered) -> None:
    store = rendered["dev"].pod("smolsessions-store")
    (configuration,) = (text.decode() for path, text in store.files().items() if path.endswith("valkey.conf"))
    options = dict(line.split(" ", 1) for line in configuration.splitlines() if line and not line.startswith("#"))
    assert (options["appendonly"], options["maxmemory-policy"]) == ("yes", "noeviction")
    (claim,) = store.workload["spec"]["volumeClaimTemplates"]
    assert options["dir"] in [mount["mountPath"] for mount in store.container["volumeMounts"]]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    bytes_of = {"mb": 1024**2, "Gi": 1024**3}
    most = int(options["maxmemory"][:-2]) * bytes_of["mb"]
    limit = store.container["resources"]["limits"]["memory"]
    assert most * 2 <= int(limit[:-2]) * bytes_of["Gi"]  # rewriting its file may double it


def test_what_the_docs_add_to_a_site_renders_into_both_roles(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "deploying.md").read_text()
    additions = re.findall(r"```yaml\n# added to kustomization\.yaml\n(.*?)```", text, re.DOTALL)
    assert len(additions) == 2
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy, ignore=shutil.ignore_patterns("secrets"))
    site = deploy / "site"
    make_secrets(site / "secrets")
    (site / "secrets" / "model.env").write_text("OPENAI_API_KEY=the-models\n")
    (site / "ca.crt").write_text("a certificate")
    for addition in additions:
        mine = yaml.safe_load((site / "kustomization.yaml").read_text())
        for key, more in yaml.safe_load(addition).items():
            same = [one for one in mine[key] for new in more if "behavior" in new and one["name"] == new["name"]]
            for one, new in zip(same, more, strict=False):  # a generator of the same name is one, with more literals
                one["literals"] += new["literals"]
            mine[key] += more[len(same) :]
        (site / "kustomization.yaml").write_text(yaml.safe_dump(mine, sort_keys=False))
    overlay = Overlay.read(kustomize(site))
    for role in ROLES:
        pod = overlay.pod(f"smolsessions-{role}")
        assert pod.files()[pod.environment[f"{PREFIX}REDIS_CA_FILE"]] == b"a certificate"
        assert pod.environment["OPENAI_API_KEY"] == "the-models"
        assert pod.environment[pod.environment[f"{PREFIX}MODEL_API_KEY_ENV"]] == "the-models"


def test_the_stores_user_has_the_rights_that_the_service_asks_for(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    off, ours = (tmp_path / "store-users.acl").read_text().splitlines()
    assert off == "user default off"
    password = hashlib.sha256((tmp_path / "store-password").read_bytes()).hexdigest()
    assert ours == f"user smolsessions on #{password} {RIGHTS}"
    assert RIGHTS in (ROOT / "docs" / "deploying.md").read_text()


def test_secrets_are_made_once(tmp_path: Path) -> None:
    key = make_secrets(tmp_path / "secrets")
    made = {file.name: file.read_bytes() for file in (tmp_path / "secrets").iterdir()}
    (tmp_path / "secrets" / "store-password").write_text("mine")
    (tmp_path / "secrets" / "api-keys").unlink()
    again = make_secrets(tmp_path / "secrets")
    after = {file.name: file.read_bytes() for file in (tmp_path / "secrets").iterdir()}
    assert made.keys() == after.keys() == {"seal-keys", "api-keys", "store-password", "store-users.acl"}
    assert {name for name in made if made[name] != after[name]} == {"api-keys", "store-password"}
    assert (key != again, after["store-password"]) == (True, b"mine")
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700


def test_compose_fits_the_service_and_the_secrets(rendered: Rendered, tmp_path: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    make_secrets(tmp_path / "secrets")
    for secret in compose["secrets"].values():
        assert (tmp_path / secret["file"]).exists()
    for config in compose["configs"].values():
        assert (DEPLOY / config["file"]).exists()
    assert {services[role]["image"] for role in ROLES} == {rendered["dev"].pod("smolsessions-web").container["image"]}
    assert services["store"]["image"] == rendered["dev"].pod("smolsessions-store").container["image"]
    assert services["store"]["command"] == rendered["dev"].pod("smolsessions-store").command
    for role in ROLES:
        service = services[role]
        assert service["command"] == [role]
        assert service["environment"][f"{PREFIX}REDIS_URL"] == "redis://smolsessions@store:6379/0"
        named = [path for setting, path in service["environment"].items() if setting.endswith("_FILE")]
        assert sorted(named) == sorted(f"/run/secrets/{secret}" for secret in service["secrets"])
        assert int(service["stop_grace_period"].removesuffix("s")) >= Settings.model_fields["drain_s"].default + CLOSE_S
        assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert services["work"]["deploy"]["replicas"] == 2
    assert services["web"]["ports"] == ["127.0.0.1:8000:8000"]


# ---------------------------------------------------------------------------------------- the rendered commands, run


@dataclass
class Running:
    """A pod's process."""

    pod: Pod
    container: Container

    def probe(self, kind: str) -> int:
        """Ask as a node does, on the port that the declared one is here."""
        declared = self.pod.probes[kind]["httpGet"]
        assert declared["port"] in self.pod.ports
        return self.container.client.get(declared["path"]).status_code

    @property
    def metrics(self) -> dict[str, float]:
        lines = self.container.client.get("/metrics").text.splitlines()
        return {line.split()[0]: float(line.split()[1]) for line in lines if not line.startswith("#")}

    @property
    def busy(self) -> bool:
        return self.metrics["smolsessions_threads_busy"] > 0

    def terminate(self) -> float:
        """End it as a node does once the preStop's sleep is over; give when."""
        assert self.pod.pre_stop_s < self.pod.grace_s
        self.container.process.terminate()
        return time.monotonic()

    def ends_in_time(self, since: float) -> None:
        left = self.pod.grace_s - self.pod.pre_stop_s - (time.monotonic() - since)
        assert self.container.process.wait(left) == 0, self.container.log.read_text()
        assert "Traceback" not in self.container.log.read_text()


class Cluster:
    """The dev overlay's processes on this machine: what its nodes would start, and the addresses that differ here."""

    def __init__(self, rendered: Rendered, image: Image, folder: Path, stack: ExitStack) -> None:
        self._overlay, self._image, self._folder, self._stack = rendered["dev"], image, folder, stack
        self.headers = {"Authorization": f"Bearer {rendered.key}"}
        self.gates = folder / "gates"
        self.gates.mkdir()
        self.gates.chmod(0o777)
        self._count, self._port = 0, free_port()
        self._store = self._store_command()
        self.store = self.start_store()

    def start(self, role: str) -> Running:
        """Start one more pod: the image's entry point and the declared arguments, environment, files and user.

        Only the ports are others, and the store's name is an address; there is an agent more, the tests' scripted one.
        """
        self._count += 1
        folder = self._folder / f"{role}-{self._count}"
        pod = self._overlay.pod(f"smolsessions-{role}")
        mounts, writable = pod.mounts(folder)
        url = pod.environment[f"{PREFIX}REDIS_URL"]
        assert STORE in url
        here = {
            f"{PREFIX}PORT": "0",
            f"{PREFIX}REDIS_URL": url.replace(STORE, f"127.0.0.1:{self._port}"),
            f"{PREFIX}AGENTS": "scripted=tests.agents:make_scripted",
        }
        command = self._image.command(
            *pod.arguments,
            user=pod.user,
            environment=pod.environment | here,
            mounts={**mounts, "/agents/tests": ROOT / "tests", "/gates": self.gates},
            writable=[*writable, "/gates"],
            entrypoint=pod.command or None,
        )
        return Running(pod, self._stack.enter_context(started(command, folder / "log")))

    def post(self, web: Running, message: str, prefer: str = "wait=50", **body: str) -> httpx2.Response:
        headers = self.headers | {"Prefer": prefer}
        return web.container.client.post("/turn", json={"message": message} | body, headers=headers)

    def waiting(self, web: Running, gate: str) -> str:
        """Begin a turn of two steps whose first waits at a gate; give where it is."""
        script = [{"call": [["wait_for", {"path": f"/gates/{gate}"}]]}, {"say": "it went on"}]
        answer = self.post(web, json.dumps(script), "respond-async", agent="scripted")
        assert answer.status_code == 202, answer.text
        until((self.gates / f"{gate}.started").exists, 20)
        return answer.headers["location"]

    def open(self, gate: str) -> None:
        (self.gates / gate).touch()

    def ended(self, web: Running, where: str) -> dict[str, Any]:
        def turn() -> dict[str, Any]:
            found: dict[str, Any] = web.container.client.get(where, headers=self.headers).json()
            return found

        until(lambda: turn()["status"] not in {"queued", "running"}, 30)
        return turn()

    def start_store(self) -> subprocess.Popen[bytes]:
        """Start the store's pod, with the data that it has, and wait until it answers."""
        with (self._folder / "store.log").open("ab") as log:
            process = self._stack.enter_context(subprocess.Popen(self._store, stdout=log, stderr=log))
        self._stack.callback(process.kill)
        password = self._overlay.pod("smolsessions-web").files()["/run/smolsessions/store-password"].decode()

        def answers() -> bool:
            with suppress(RedisError, OSError), Redis(port=self._port, username=USER, password=password) as client:
                return bool(client.info("server"))
            return False

        until(answers, 20)
        return process

    def _store_command(self) -> list[str]:
        """Give the declared command; found as this machine's server, on a port that is free here."""
        pod = self._overlay.pod("smolsessions-store")
        assert pod.command[0] == "valkey-server"
        mounts, writable = pod.mounts(self._folder / "store")
        system = bare(self._folder / "system")
        return replace(system, environment={"PATH": f"/opt/store:{system.environment['PATH']}"}).command(
            *pod.command,
            *("--port", str(self._port), "--bind", "127.0.0.1"),
            user=pod.user,
            mounts={**mounts, "/opt/store/valkey-server": find_binary()},
            writable=writable,
        )


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as closing:
        port: int = closing.getsockname()[1]
    return port


@pytest.fixture
def cluster(rendered: Rendered, image: Image, tmp_path: Path) -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(rendered, image, tmp_path, stack)


def test_the_rendered_pods_serve_and_play(cluster: Cluster, rendered: Rendered, image: Image) -> None:
    web, work = cluster.start("web"), cluster.start("work")
    for pod in (web, work):
        assert {kind: pod.probe(kind) for kind in pod.pod.probes} == dict.fromkeys(pod.pod.probes, 200)
        assert pod.container.is_healthy(image, pod.pod.user)
    for agent in ("demo", "demo-code"):
        turn = cluster.post(web, "What is 12 * 7?", agent=agent).json()
        assert (turn["reply"], turn["tool_call_names"]) == ("12 * 7 = 84.", ["calculator"])
    assert web.container.client.post("/turn", json={"message": "x"}).status_code == 401
    assert work.container.client.post("/turn", json={"message": "x"}, headers=cluster.headers).status_code == 404
    scaler = rendered["production"].one("HorizontalPodAutoscaler", "smolsessions-work")["spec"]
    cluster.waiting(web, "seen")
    assert metrics_of(scaler) <= {name.partition("{")[0] for name in work.metrics}
    cluster.open("seen")


def test_a_worker_that_is_told_to_end_hands_its_turn_over_within_its_grace(cluster: Cluster) -> None:
    web, first, second = cluster.start("web"), cluster.start("work"), cluster.start("work")
    where = cluster.waiting(web, "gate")
    ending, other = (first, second) if first.busy else (second, first)
    since = ending.terminate()
    until(lambda: ending.probe("readiness") == 503)
    assert ending.probe("liveness") == 200
    cluster.open("gate")
    ending.ends_in_time(since)
    turn = cluster.ended(web, where)
    assert (turn["status"], turn["reply"], turn["attempts"]) == ("finished", "it went on", 2)
    assert [call["repeated"] for call in turn["tool_calls"]] == [False]
    assert other.probe("readiness") == 200


def test_a_web_that_is_told_to_end_answers_who_waits_and_another_goes_on(cluster: Cluster) -> None:
    first, second, _ = cluster.start("web"), cluster.start("web"), cluster.start("work")
    where = cluster.waiting(first, "gate")
    answers: list[httpx2.Response] = []
    conversation = where.split("/")[2]
    waiting = threading.Thread(
        target=lambda: answers.append(
            cluster.post(first, '[{"say": "next"}]', conversation_id=conversation, agent="scripted", on_busy="enqueue")
        )
    )
    waiting.start()
    turns = f"/conversations/{conversation}/turns"
    listed = second.container.client
    until(lambda: len(listed.get(turns, headers=cluster.headers).json()["items"]) == 2)
    since = first.terminate()
    first.ends_in_time(since)
    waiting.join(5)
    assert (answers[0].status_code, answers[0].json()["status"]) == (202, "queued")
    cluster.open("gate")
    assert cluster.ended(second, where)["reply"] == "it went on"
    assert cluster.ended(second, f"{turns}/2")["reply"] == "next"


def test_pods_that_lose_their_store_stay_and_go_on_when_it_is_back(cluster: Cluster) -> None:
    web, work = cluster.start("web"), cluster.start("work")
    first = cluster.post(web, "What is 12 * 7?", agent="demo").json()
    cluster.store.terminate()
    assert cluster.store.wait(10) == 0
    refused = cluster.post(web, "What is 12 * 7?", agent="demo")
    assert (refused.status_code, refused.json()["code"]) == (503, "store_unavailable")
    assert refused.headers["retry-after"]
    for pod in (web, work):
        assert {kind: pod.probe(kind) for kind in pod.pod.probes} == dict.fromkeys(pod.pod.probes, 200)
    cluster.start_store()
    asked = {"conversation_id": str(first["conversation_id"])}
    until(lambda: cluster.post(web, "What did I ask first?", **asked).status_code == 200, 20)
    listed = web.container.client.get(f"/conversations/{first['conversation_id']}/turns", headers=cluster.headers)
    assert "12 * 7" in listed.json()["items"][-1]["reply"]
