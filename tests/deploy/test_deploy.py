"""Rendered deploy/: its parts fit each other, the service and the docs."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from smolsessions import __version__
from smolsessions.runtime.shutdown import CLOSE_S
from smolsessions.settings import PREFIX, Settings
from smolsessions.store.connection.server_errors import RIGHTS
from tests.support.manifests import ROLES, Manifest, Overlay, Pod, Rendered, declared_store, metrics_of
from tests.support.service import ROOT, Service, run_program, write_private
from tools import image_check
from tools.deploy_check import OVERLAYS, kustomize, make_secrets

DEPLOY = ROOT / "deploy"
PAGES = ROOT / "docs" / "how-to"
CLIENT = ("url", "api_key")  # of the client and of the command line


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest, rendered: Rendered) -> Overlay:
    return rendered[request.param]


def test_web_and_work_are_one_image_of_this_release_in_two_roles(overlay: Overlay, rendered: Rendered) -> None:
    pods = overlay.roles()
    assert [(pod.command, pod.arguments) for pod in pods] == [([], [role]) for role in ROLES]
    (image,) = {pod.container["image"] for pod in pods}
    assert image.rpartition(":")[2] == ("dev" if overlay is rendered["dev"] else __version__)


def instructions() -> dict[str, str]:
    """Return the instructions of the Dockerfile's last stage, the last of each kind."""
    last = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").rpartition("\nFROM ")[2]
    pairs = (line.strip().partition(" ") for line in last.splitlines() if line and not line.startswith("#"))
    return {word: text for word, _, text in pairs}


def test_the_dockerfile_declares_what_the_manifests_and_the_docs_rely_on(overlay: Overlay) -> None:
    """`make image-check` builds it and runs it, and the three lines of docker.md on top of it."""
    said = instructions()
    assert said["USER"] == "10001:10001" == overlay.pod("smolsessions-web").user
    assert (json.loads(said["ENTRYPOINT"]), json.loads(said["CMD"])) == (["tini", "--", "smolsessions"], ["serve"])
    assert int(said["EXPOSE"]) == Settings.model_fields["port"].default
    declared = dict(pair.split("=", 1) for pair in said["ENV"].split())
    assert {declared[name] for name in ("HOME", "TMPDIR", f"{PREFIX}DATA_DIR")} == {said["VOLUME"]} == {"/data"}
    assert declared[f"{PREFIX}HOST"] == "0.0.0.0"
    page = (PAGES / "docker.md").read_text()
    image, file, agent = re.findall(r"```dockerfile\n(.*?)```", page, re.DOTALL)[0].splitlines()
    assert (image, file, said["WORKDIR"]) == ("FROM smolsessions", "COPY my_agents.py .", "/agents")
    assert f"def {agent.rpartition(':')[2]}(" in page


def test_the_images_health_check_asks_the_service_without_a_proxy(service: Service) -> None:
    _, _, words = instructions()["HEALTHCHECK"].partition("CMD ")
    python, *code = json.loads(words)
    assert python == "python"
    statuses = []
    for port in (service.client.base_url.port, 1):
        environment = {f"{PREFIX}PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
        ended = subprocess.run([sys.executable, *code], env=environment, capture_output=True, check=False)
        statuses.append(ended.returncode)
    assert statuses == [0, 1]


def test_web_and_work_take_the_declared_settings_and_secrets(rendered: Rendered, tmp_path: Path) -> None:
    with declared_store(rendered["dev"], tmp_path / "store") as url, ExitStack() as stack:
        running = {}
        for role in ROLES:
            pod = rendered["dev"].pod(f"smolsessions-{role}")
            (tmp_path / role).mkdir()
            places = {path: tmp_path / role / Path(path).name for path in pod.files()}
            for path, content in pod.files().items():
                write_private(places[path], content.decode())
            here = {name: str(places.get(value, value)) for name, value in pod.environment.items()}
            settings = here | {f"{PREFIX}REDIS_URL": url}
            running[role] = stack.enter_context(Service(tmp_path / role, {}, settings, command=(role,)))
            for probe in pod.probes.values():
                assert running[role].client.get(probe["httpGet"]["path"]).status_code == 200
        headers = {"Authorization": f"Bearer {rendered.key}"}
        body = {"message": "What is 12 * 7?", "agent": "demo"}
        assert running["web"].client.post("/turn", json=body).status_code == 401
        assert running["work"].client.post("/turn", json=body, headers=headers).status_code == 404
        assert running["web"].client.post("/turn", json=body, headers=headers).json()["reply"] == "12 * 7 = 84."
        shown = set(re.findall(r"^smolsessions_[a-z_]+", running["work"].client.get("/metrics").text, re.MULTILINE))
    assert metrics_of(rendered["production"]) <= shown
    documented = set(re.findall(r"\bsmolsessions_[a-z_]+", (PAGES / "monitor.md").read_text()))
    assert {name for name in documented if not {name, f"{name}_count"} & shown} == set()


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


def test_the_grace_is_longer_than_all_that_ending_may_take(overlay: Overlay) -> None:
    for pod in overlay.roles():
        drain_s = float(pod.environment.get(f"{PREFIX}DRAIN_S", Settings.model_fields["drain_s"].default))
        assert pod.grace_s >= pod.pre_stop_s + drain_s + CLOSE_S
        assert pod.workload["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
        budget = overlay.one("PodDisruptionBudget", pod.name)["spec"]
        assert (budget["maxUnavailable"], matches(budget["selector"], pod)) == (1, True)
    assert overlay.pod("smolsessions-web").pre_stop_s == 10


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
    web, work = overlay.roles()
    assert {"http", 8000} & ports_of(policies, "ingress", web)
    for pod in (web, work):
        out = ports_of(policies, "egress", pod)
        assert {53, 5353, 6379} <= out
        assert (443 in out) is (pod is work)
    store = [pod for pod in overlay.pods() if pod.name == "smolsessions-store"]
    assert [ports_of(policies, "egress", pod) for pod in store] == [{53, 5353}] * len(store)
    (models,) = (
        rule
        for policy in policies
        if matches(policy["podSelector"], work)
        for rule in policy.get("egress", [])
        if 443 in {port["port"] for port in rule["ports"]}
    )
    open_to = {place["ipBlock"]["cidr"]: set(place["ipBlock"]["except"]) for place in models["to"]}
    assert open_to.keys() == {"0.0.0.0/0", "::/0"}
    assert {"10.0.0.0/8", "169.254.0.0/16"} < open_to["0.0.0.0/0"]
    assert {"fc00::/7", "fe80::/10"} == open_to["::/0"]


def ports_of(policies: list[Manifest], way: str, pod: Pod) -> set[int | str]:
    rules = (rule for policy in policies if matches(policy["podSelector"], pod) for rule in policy.get(way, []))
    return {port["port"] for rule in rules for port in rule["ports"]}


def test_what_is_named_in_deploy_is_a_setting() -> None:
    known = {f"{PREFIX}{name}".upper() for name in (*Settings.model_fields, *CLIENT)}
    files = [*DEPLOY.rglob("*.yaml"), ROOT / "Dockerfile", *PAGES.glob("*.md")]
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


def test_what_the_docs_add_to_a_site_renders(tmp_path: Path) -> None:
    additions = re.findall(r"```yaml\n(.*?)```", (PAGES / "kubernetes.md").read_text(), re.DOTALL)
    assert len(additions) == 8
    deploy = tmp_path / "deploy"
    shutil.copytree(DEPLOY, deploy, ignore=shutil.ignore_patterns("secrets"))
    site = deploy / "site"
    make_secrets(site / "secrets")
    (site / "secrets" / "model.env").write_text("OPENAI_API_KEY=the-models\n")
    (site / "ca.crt").write_text("a certificate")
    (site / "agents.toml").write_text("agents")
    for addition in additions:
        mine = yaml.safe_load((site / "kustomization.yaml").read_text())
        for key, more in yaml.safe_load(addition).items():
            same = [one for one in mine[key] for new in more if "behavior" in new and one["name"] == new["name"]]
            for one, new in zip(same, more, strict=False):  # a generator of the same name is merged, with more literals
                one["literals"] += new["literals"]
            mine[key] += more[len(same) :]
        (site / "kustomization.yaml").write_text(yaml.safe_dump(mine, sort_keys=False))
    overlay = Overlay.read(kustomize(site))
    assert [each["kind"] for each in overlay.all("HTTPRoute", "Ingress")] == ["Ingress"]
    let_in = overlay.one("NetworkPolicy", "smolsessions-web")["spec"]["ingress"][0]["from"]
    assert [list(place) for place in let_in] == [["namespaceSelector"], ["ipBlock"]]
    store = overlay.one("NetworkPolicy", "smolsessions-to-store")["spec"]["egress"][0]["ports"]
    assert [port["port"] for port in store] == [6379, 26379, 6380]
    assert overlay.one("PodMonitor", "smolsessions")["metadata"]["labels"]["release"]
    for pod in overlay.roles():
        assert not {"runAsUser", "runAsGroup", "fsGroup"} & pod.spec["securityContext"].keys()
        assert pod.files()[pod.environment[f"{PREFIX}REDIS_CA_FILE"]] == b"a certificate"
        assert pod.files()[pod.environment[f"{PREFIX}AGENTS_FILE"]] == b"agents"
        assert pod.environment["OPENAI_API_KEY"] == "the-models"
        assert pod.environment[pod.environment[f"{PREFIX}MODEL_API_KEY_ENV"]] == "the-models"


def test_the_stores_user_has_the_rights_that_the_service_asks_for(tmp_path: Path) -> None:
    make_secrets(tmp_path)
    off, ours = (tmp_path / "store-users.acl").read_text().splitlines()
    assert off == "user default off resetpass +@all ~* &*"  # Redis 7 replays its file with the rights of `default`
    password = hashlib.sha256((tmp_path / "store-password").read_bytes()).hexdigest()
    assert ours == f"user smolsessions on #{password} {RIGHTS} +acl|dryrun"
    assert RIGHTS in (PAGES / "store.md").read_text()


def test_the_image_check_takes_debians_archive_among_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = {"Other": "first.example/debian", "Debian": "second.example/mirror/debian"}
    (tmp_path / "sources.list").write_text("".join(f"deb http://{at} bookworm main\n" for at in places.values()))
    for origin, at in places.items():
        start = tmp_path / f"{at.replace('/', '_')}_dists_bookworm_"
        about = f"Origin: {origin}\nLabel: {origin}\nCodename: bookworm\nComponents: main\nArchitectures: amd64\n"
        Path(f"{start}Release").write_text(f"{about}SHA256:\n {'0' * 64} 0 main/binary-amd64/Packages\n")
        Path(f"{start}main_binary-amd64_Packages").touch()
    (tmp_path / "apt.conf").write_text(
        f'APT::Architecture "amd64"; Dir::Etc::sourcelist "{tmp_path}/sources.list"; Dir::Etc::sourceparts "/dev/null";'
        f'Dir::State::lists "{tmp_path}";'
    )
    monkeypatch.setenv("APT_CONFIG", str(tmp_path / "apt.conf"))
    assert image_check.debian_mirror() == [f"http://{places['Debian']}/"]


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
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "secrets", *(tmp_path / "secrets").iterdir())]
    assert modes == [0o700] + [0o640] * 4  # compose adds this group to its containers


def test_secrets_are_not_begun_where_nothing_can_make_them(tmp_path: Path) -> None:
    command = [str(DEPLOY / "make-secrets"), str(tmp_path / "secrets"), "no-such-program"]
    for arguments, told in ((command[:1], "make-secrets FOLDER"), (command, "docker run --rm IMAGE")):
        ended = run_program(arguments)
        assert (ended.returncode != 0, ended.stdout) == (True, "")
        assert told in ended.stderr
    assert not (tmp_path / "secrets").exists()


def test_compose_fits_the_service_and_the_secrets(rendered: Rendered, tmp_path: Path) -> None:
    compose: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    make_secrets(tmp_path / "secrets")
    for secret in compose["secrets"].values():
        assert (tmp_path / secret["file"]).exists()
    mounted = [volume.partition(":")[0] for volume in services["store"]["volumes"] if volume.startswith(".")]
    assert mounted == ["./dev/valkey.conf"]
    assert (DEPLOY / mounted[0]).is_file()
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
    for service in services.values():  # none runs as the owner of the files
        assert service["group_add"] == [compose["x-group"]["group_add"][0]]
        assert service["group_add"][0].startswith("${SECRETS_GROUP:?")
    assert services["work"]["deploy"]["replicas"] == 2
    assert services["web"]["ports"] == ["127.0.0.1:8000:8000"]
