"""Rendered manifests: the objects of an overlay, and its pods as their nodes would start them. PYTEST_DONT_REWRITE."""

import base64
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import RedisError

from smolsessions.store.embedded.server import find_binary
from tests.support.waiting import PATIENCE_S, wait_until
from tests.topology.node import free_port
from tools.deploy_check import make_secrets, render

Manifest = dict[str, Any]
WORKLOADS = {"Deployment", "StatefulSet"}
ROLES = ("web", "work")


@dataclass(frozen=True)
class Rendered:
    """All overlays, and the API key that the operator was shown."""

    overlays: dict[str, "Overlay"]
    key: str

    def __getitem__(self, name: str) -> "Overlay":
        return self.overlays[name]


@pytest.fixture(scope="session")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Rendered:
    """Return all overlays, rendered with secrets of their own."""
    folder = tmp_path_factory.mktemp("rendered")
    key = make_secrets(folder / "secrets")
    return Rendered({name: Overlay.read(text) for name, text in render(folder, folder / "secrets").items()}, key)


@contextmanager
def declared_store(overlay: "Overlay", folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    """Run the dev overlay's store with its declared options and users. Yield the address that its pods use here."""
    pod, web = overlay.pod("smolsessions-store"), overlay.pod("smolsessions-web")
    folder.mkdir()
    for path, content in pod.files().items():
        here = content.decode().replace("dir /data", f"dir {folder}").replace("/run/store/", f"{folder}/")
        (folder / Path(path).name).write_text(here)
    server, options = pod.command
    assert server == "valkey-server"
    port = free_port()
    command = [str(find_binary()), str(folder / Path(options).name), "--port", str(port), "--bind", host]
    url = web.environment["SMOLSESSIONS_REDIS_URL"].replace(f"{pod.name}:{pod.ports['store']}", f"{host}:{port}")
    password = web.files()[web.environment["SMOLSESSIONS_REDIS_PASSWORD_FILE"]].decode()
    with (
        subprocess.Popen(command, stdout=subprocess.DEVNULL) as process,
        Redis.from_url(url, password=password) as asked,
    ):

        def answers() -> bool:
            assert process.poll() is None, "the store ended"
            with suppress(RedisError, OSError):
                return bool(asked.info("server"))
            return False

        try:
            wait_until(answers)
            yield url
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def metrics_of(overlay: "Overlay") -> set[str]:
    """Return the names of the metrics by which workers are scaled."""
    scaler = overlay.one("HorizontalPodAutoscaler", "smolsessions-work")["spec"]
    return {metric[metric["type"].lower()]["metric"]["name"] for metric in scaler["metrics"]}


@dataclass(frozen=True)
class Overlay:
    manifests: list[Manifest]

    @classmethod
    def read(cls, text: str) -> "Overlay":
        return cls([manifest for manifest in yaml.safe_load_all(text) if manifest])

    def all(self, *kinds: str) -> list[Manifest]:
        return [manifest for manifest in self.manifests if manifest["kind"] in kinds]

    def one(self, kind: str, name: str) -> Manifest:
        (found,) = (manifest for manifest in self.all(kind) if manifest["metadata"]["name"] == name)
        return found

    def pod(self, name: str) -> "Pod":
        (workload,) = (each for each in self.all(*WORKLOADS) if each["metadata"]["name"] == name)
        return Pod(self, workload)

    def roles(self) -> list["Pod"]:
        return [self.pod(f"smolsessions-{role}") for role in ROLES]

    def pods(self) -> list["Pod"]:
        return [Pod(self, workload) for workload in self.all(*WORKLOADS)]


@dataclass(frozen=True)
class Pod:
    overlay: Overlay
    workload: Manifest

    @property
    def name(self) -> str:
        return str(self.workload["metadata"]["name"])

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.workload["spec"]["template"]["spec"]
        return spec

    @property
    def labels(self) -> dict[str, str]:
        labels: dict[str, str] = self.workload["spec"]["template"]["metadata"]["labels"]
        return labels

    @property
    def container(self) -> Manifest:
        (container,) = self.spec["containers"]
        found: Manifest = container
        return found

    @property
    def user(self) -> str:
        security = self.spec["securityContext"]
        return f"{security['runAsUser']}:{security['runAsGroup']}"

    @property
    def command(self) -> list[str]:
        """Declared command. It is empty if the image's command applies."""
        return list(self.container.get("command", []))

    @property
    def arguments(self) -> list[str]:
        return list(self.container.get("args", []))

    @property
    def grace_s(self) -> int:
        return int(self.spec["terminationGracePeriodSeconds"])

    @property
    def pre_stop_s(self) -> int:
        """Duration of the sleep before SIGTERM. Other hooks are not supported."""
        hook = self.container.get("lifecycle", {}).get("preStop", {"sleep": {"seconds": 0}})
        assert hook.keys() == {"sleep"}
        return int(hook["sleep"]["seconds"])

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def probes(self) -> dict[str, Manifest]:
        return {kind: self.container[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}

    @property
    def environment(self) -> dict[str, str]:
        values: dict[str, str] = {}
        for source in self.container.get("envFrom", []):
            if "configMapRef" in source:
                values |= self.overlay.one("ConfigMap", source["configMapRef"]["name"])["data"]
            else:
                secret = self._secret(source["secretRef"]["name"])
                values |= {name: value.decode() for name, value in secret.items()}
        return values | {variable["name"]: variable["value"] for variable in self.container.get("env", [])}

    def files(self) -> dict[str, bytes]:
        """Return the content of Secrets and ConfigMaps by the path at which it is mounted."""
        return {
            f"{mount['mountPath']}/{path}": content
            for mount in self.container["volumeMounts"]
            for path, content in self._contents(self._volume(mount["name"]))
        }

    def mounts(self, folder: Path) -> tuple[dict[str, Path], list[str]]:
        """Write the volumes below `folder` with a pod's permissions. Return them, and the writable paths."""
        group = int(self.spec["securityContext"]["fsGroup"])
        mounts, writable = {}, []
        for mount in self.container["volumeMounts"]:
            volume, place = self._volume(mount["name"]), folder / mount["name"]
            place.mkdir(parents=True)
            for path, content in self._contents(volume):
                file = place / path
                file.write_bytes(content)
                os.chown(file, 0, group)
                file.chmod(_mode_of(volume))
            mounts[mount["mountPath"]] = place
            if "emptyDir" in volume or "claim" in volume:
                os.chown(place, 0, group)
                place.chmod(0o2775)
                writable.append(mount["mountPath"])
        return mounts, writable

    def _volume(self, name: str) -> Manifest:
        claims = self.workload["spec"].get("volumeClaimTemplates", [])
        volumes = [*self.spec["volumes"], *({"name": claim["metadata"]["name"], "claim": claim} for claim in claims)]
        (found,) = (volume for volume in volumes if volume["name"] == name)
        return dict(found)

    def _contents(self, volume: Manifest) -> Iterator[tuple[str, bytes]]:
        if "configMap" in volume:
            data = self.overlay.one("ConfigMap", volume["configMap"]["name"])["data"]
            yield from ((name, text.encode()) for name, text in data.items())
        if "secret" in volume:
            yield from self._secret(volume["secret"]["secretName"]).items()
        for source in volume.get("projected", {}).get("sources", []):
            data = self._secret(source["secret"]["name"])
            yield from ((item["path"], data[item["key"]]) for item in source["secret"]["items"])

    def _secret(self, name: str) -> dict[str, bytes]:
        return {key: base64.b64decode(text) for key, text in self.overlay.one("Secret", name)["data"].items()}


def _mode_of(volume: Manifest) -> int:
    source: Manifest = volume.get("projected") or volume.get("secret") or {}
    return int(source.get("defaultMode", 0o644))
