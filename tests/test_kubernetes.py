"""The chart in deploy/helm and the manifest in deploy/kubernetes. The chart takes Helm; the manifest, nothing."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from app.config.parsing import parse
from app.config.settings import Settings
from app.config.version import VERSION
from tests.helm import CHART, MANIFEST, helm, is_there, rendered, value_files
from tests.test_compose import accepted

MIB = 1024 * 1024
OLDEST = "1.27"  # kubeVersion of Chart.yaml
OF_OPERATORS = {"PrometheusRule", "ScaledObject", "ServiceMonitor"}
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
ENVIRONMENT = {"KAFKA_BOOTSTRAP_SERVERS": "kafka:9092"}
SECRET_FILE = re.compile(r"/run/secrets/([\w.-]+)/([\w.-]+)")


@dataclass(frozen=True, slots=True)
class Release:
    """What Kubernetes gets, and what the worker in it reads."""

    objects: tuple[dict[str, Any], ...]
    settings: Settings

    def all(self, kind: str) -> list[dict[str, Any]]:
        """The objects of a kind."""
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind: str) -> dict[str, Any]:
        """The only object of a kind."""
        (found,) = self.all(kind)
        return found

    @property
    def template(self) -> dict[str, Any]:
        """The template of the workers' pods."""
        found: dict[str, Any] = self.one("Deployment")["spec"]["template"]
        return found

    @property
    def worker(self) -> dict[str, Any]:
        """The container of the worker."""
        (found,) = self.template["spec"]["containers"]
        assert isinstance(found, dict)
        return found

    def pods(self) -> Iterator[dict[str, Any]]:
        """The specifications of all pods."""
        yield self.template["spec"]
        yield from (each["spec"] for each in self.all("Pod"))


def read(text: str, folder: Path) -> Release:
    """A release from its YAML; each secret file that its configuration names has something in it."""
    objects = tuple(each for each in yaml.safe_load_all(text) if each)
    (config,) = (each["data"]["wideload.toml"] for each in objects if each["kind"] == "ConfigMap")
    for name, key in SECRET_FILE.findall(config):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / key).write_text("something-at-random-1234", encoding="utf-8")
    return Release(objects, parse(tomllib.loads(config.replace("/run/secrets", str(folder))), ENVIRONMENT))


# Without Helm the tests of Helm itself say that they are skipped, which is enough.
@pytest.fixture(scope="module", params=["manifest", *(value_files() if is_there() else ())])
def release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The manifest, and what the chart gives for each value file. Wideload takes its configuration."""
    text = MANIFEST.read_text() if request.param == "manifest" else rendered(request.param)
    return read(text, tmp_path_factory.mktemp("secrets"))


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_objects_follow_the_schemas_of_kubernetes(release: Release, version: str) -> None:
    """Each is valid by the strict schema of the oldest release that the chart takes, and of the newest known."""
    checked = [each for each in release.objects if each["kind"] not in OF_OPERATORS]
    assert len(checked) >= 5
    for each in checked:
        kubernetes_validate.validate(each, version, strict=True)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate({**release.one("Service"), "spek": {}}, version, strict=True)


def test_pods_meet_the_restricted_standard(release: Release) -> None:
    """No root, no capabilities, no way to more permissions, a read-only root file system, no token of the cluster."""
    for pod in release.pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}


def test_pods_mount_what_there_is(release: Release) -> None:
    """Each mount has its volume; /tmp can be written, and each secret that the configuration names is there to read."""
    text = release.one("ConfigMap")["data"]["wideload.toml"]
    for pod in release.pods():
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for container in pod["containers"]:
            mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
            assert {mount["name"] for mount in mounts.values()} == set(volumes)
            assert "sizeLimit" in volumes[mounts["/tmp"]["name"]]["emptyDir"]  # noqa: S108  # the container's
            assert (
                volumes[mounts["/etc/wideload"]["name"]]["configMap"]["name"]
                == (release.one("ConfigMap")["metadata"]["name"])
            )
            for name, _ in SECRET_FILE.findall(text):
                mount = mounts[f"/run/secrets/{name}"]
                assert mount["readOnly"] is True
                assert volumes[mount["name"]]["secret"] == {"secretName": name, "defaultMode": 0o440}
                assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"]


def test_commands_are_commands_of_the_program(release: Release) -> None:
    """The command line accepts the arguments of each container with the entry point of the image."""
    for pod in release.pods():
        for container in pod["containers"]:
            assert accepted(container["args"])


def test_probes_ask_the_pages(release: Release) -> None:
    """The probes, the service and the pages have one port, and only the readiness probe asks for pipelines."""
    worker = release.worker
    assert worker["ports"] == [{"name": "http", "containerPort": release.settings.web_port}]
    assert release.settings.web_bind == "0.0.0.0"  # noqa: S104  # the address of the container
    for probe, page in (("startup", "live"), ("liveness", "live"), ("readiness", "ready")):
        assert worker[f"{probe}Probe"]["httpGet"] == {"path": f"/health/{page}", "port": "http"}
    assert worker["startupProbe"]["periodSeconds"] * worker["startupProbe"]["failureThreshold"] >= 180
    assert [port["targetPort"] for port in release.one("Service")["spec"]["ports"]] == ["http"]


def test_worker_has_time_and_memory(release: Release) -> None:
    """SIGKILL comes later than its own limit; the memory has room for budget, reading, chunks, and 250 MiB."""
    assert release.template["spec"]["terminationGracePeriodSeconds"] * 1000 > release.settings.graceful_timeout_ms
    resources = release.worker["resources"]
    budget = release.settings.in_flight_bytes
    chunks = sum(budget // 2 for pipeline in release.settings.pipelines if "assemble" in pipeline.transforms)
    limit = int(resources["limits"]["memory"].removesuffix("Mi")) * MIB
    assert limit >= budget + max(budget // 4, 64 * MIB) + chunks + 250 * MIB
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_selectors_find_the_workers_alone(release: Release) -> None:
    """Deployment, service, budget and policy find the pods of the workers, and not the one of `helm test`."""
    labels = release.template["metadata"]["labels"].items()
    for selector in (
        release.one("Deployment")["spec"]["selector"]["matchLabels"],
        release.one("Service")["spec"]["selector"],
        release.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        *(each["spec"]["podSelector"]["matchLabels"] for each in release.all("NetworkPolicy")),
        *(each["labelSelector"]["matchLabels"] for each in release.template["spec"]["topologySpreadConstraints"]),
    ):
        assert selector.items() <= labels
        assert not any(selector.items() <= pod["metadata"]["labels"].items() for pod in release.all("Pod"))


def test_monitor_finds_the_service(release: Release) -> None:
    """Prometheus scrapes /metrics of the service, as the job of which the rules speak."""
    for monitor in release.all("ServiceMonitor"):
        labels = release.one("Service")["metadata"]["labels"]
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
        assert labels[monitor["spec"]["jobLabel"]] == "wideload"
        assert [(each["port"], each["path"]) for each in monitor["spec"]["endpoints"]] == [("http", "/metrics")]


def test_autoscaling_follows_groups_that_there_are(release: Release) -> None:
    """KEDA looks at the lag of groups of the pipelines, and the deployment leaves the number of workers to it."""
    deployment = release.one("Deployment")
    scaled = release.all("ScaledObject")
    assert ("replicas" in deployment["spec"]) is not bool(scaled)
    groups = {(each.group_id, topic) for each in release.settings.pipelines for topic in each.topics}
    for each in scaled:
        assert each["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
        triggers = [trigger["metadata"] for trigger in each["spec"]["triggers"]]
        assert {(trigger["consumerGroup"], trigger["topic"]) for trigger in triggers} == groups
        assert all(trigger["lagThreshold"].isdecimal() for trigger in triggers)


def test_rules_are_those_of_prometheus(release: Release) -> None:
    """The alerts of the chart are those of deploy/prometheus."""
    rules = (CHART.parents[1] / "prometheus" / "rules.yml").read_text()
    assert (CHART / "files" / "rules.yml").read_text() == rules, (
        "run: cp deploy/prometheus/rules.yml deploy/helm/wideload/files"
    )
    assert all(each["spec"] == yaml.safe_load(rules) for each in release.all("PrometheusRule"))


def test_manifest_is_what_the_chart_gives() -> None:
    """Who installs without Helm gets the same objects, of this version."""
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"] == VERSION
    found, wanted = (
        list(yaml.safe_load_all(text)) for text in (MANIFEST.read_text(), rendered("minimal", "--skip-tests"))
    )
    assert found == wanted, "run: make manifest"


def test_configmap_of_the_user_is_mounted() -> None:
    """With a ConfigMap of the user's own the chart makes none, and the pods have that one."""
    objects = list(yaml.safe_load_all(rendered("minimal", "--set=config=,existingConfigMap=mine")))
    (deployment,) = (each for each in objects if each and each["kind"] == "Deployment")
    assert "ConfigMap" not in {each["kind"] for each in objects if each}
    assert deployment["spec"]["template"]["spec"]["volumes"][0]["configMap"] == {"name": "mine"}
    kubernetes_validate.validate(deployment, OLDEST, strict=True)


@pytest.mark.parametrize("values", [None, *value_files()])
def test_chart_passes_the_linter(values: str | None) -> None:
    """Helm finds nothing to warn of."""
    files = [] if values is None else ["--values", str(value_files()[values])]
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), *files)


def test_another_configuration_starts_new_pods() -> None:
    """The pods' template differs where the configuration or what the chart adds to it does, and nowhere else."""
    file = str(value_files()["keda"])  # another configuration
    changes = [("--set=replicaCount=2",), ("--set=service.port=80",), ("--set=memory.inFlightMiB=255",)]
    templates = [read(rendered("minimal", *change), Path()).template for change in (*changes, (f"--values={file}",))]
    checksums = [each["metadata"]["annotations"]["checksum/config"] for each in templates]
    assert checksums[0] == checksums[1]
    assert len(set(checksums)) == 3


def test_notes_say_what_to_do_next(tmp_path: Path) -> None:
    """After the installation Helm prints commands with the names of this release."""
    chart = tmp_path / "wideload"
    shutil.copytree(CHART, chart)
    # Helm prints them to a cluster only; here they are part of an object.
    (chart / "templates" / "told.yaml").write_text('told: {{ include "wideload/templates/NOTES.txt" . | quote }}')
    values = ("--values", str(value_files()["full"]))
    text = helm("template", "mine", str(chart), "--namespace=there", "--kube-version=1.37", *values)
    (notes,) = (each["told"] for each in yaml.safe_load_all(text) if each and "told" in each)
    assert "helm test mine -n there" in notes
    assert "kubectl -n there rollout status deployment/orders-mover" in notes
    assert "WARNING: the service is of the type LoadBalancer" in notes


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("replicaCount=two", "at '/replicaCount': got string, want integer"),
        ("image.tg=1.0", "at '/image': additional properties 'tg' not allowed"),
        ("podSecurityContext.runAsNonRoot=false", "at '/podSecurityContext/runAsNonRoot': value must be true"),
        ("image.digest=latest", "at '/image/digest': 'latest' does not match pattern"),
        ("autoscaling.enabled=true", "at '/autoscaling/triggers': minItems: got 0, want 1"),
        ("resources.limits.memory=500Mi", "resources.limits.memory: found 500Mi, but the worker uses up to 506Mi"),
        ("existingConfigMap=mine", "existingConfigMap: it is set, and so is config; set only one of them"),
        ("config=", "config: it is empty; set it to the text of wideload.toml"),
        ("image.repository=", "image.repository: it is empty; build the image"),
        ("config=web.port = 80", "config: found web.port, which the chart writes itself; remove it, and set port"),
        (
            "config=s3.secret.key = '${file:/run/secrets/keys/s3}'",
            "config: found /run/secrets/keys/, but secrets does not contain keys, so the file would not exist",
        ),
    ],
)
def test_wrong_values_are_refused(change: str, told: str) -> None:
    """Helm says where a value is wrong, and what it may be, before anything goes to the cluster."""
    arguments = ("template", "wideload", str(CHART), "--kube-version=1.37", "--set", change)
    assert told in helm(*arguments, "--values", str(value_files()["minimal"]), status=1)


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Values over others, as Helm merges them."""
    both = (set(base) & set(over)) - {key for key in over if not isinstance(over[key], dict)}
    return {**base, **over, **{key: merged(base[key], over[key]) for key in both}}


def test_values_follow_the_schema() -> None:
    """The defaults, and each value file over them, are valid by draft 7, which has the same names and no other."""
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    for over in ({}, *(yaml.safe_load(file.read_text()) for file in value_files().values())):
        jsonschema.Draft7Validator(SCHEMA).validate(merged(VALUES, over))
    assert SCHEMA["additionalProperties"] is False
    assert set(SCHEMA["properties"]) - {"global"} == set(VALUES)
    closed = {name: each for name, each in SCHEMA["properties"].items() if each.get("additionalProperties") is False}
    assert len(closed) >= 12
    for name in set(closed) - {"resources"}:
        assert set(closed[name]["properties"]) == set(VALUES[name])


def test_each_value_has_its_comment() -> None:
    """Above each value, or above each value of its group, a comment says what it does."""
    lines = (CHART / "values.yaml").read_text().splitlines()
    bare, group = [], ""
    for before, line in zip(["", *lines], lines, strict=False):
        match = re.match(r"( {0,2})(\w+):", line)
        if match is None:
            continue
        commented = before.strip().startswith("#")
        if not match[1]:
            group = "" if commented else match[2]
            if not commented and not line.endswith(":"):
                bare.append(match[2])
        elif group and not commented:
            bare.append(f"{group}.{match[2]}")
    assert bare == []


def test_the_page_s_values_are_values(tmp_path: Path) -> None:
    """The example of the page is valid by the schema, and Wideload takes its configuration with the Secret there is."""
    section = (CHART.parents[2] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", section, flags=re.DOTALL)
    values = yaml.safe_load(block.replace("sha256:…", f"sha256:{'0' * 64}"))
    jsonschema.Draft7Validator(SCHEMA).validate(merged(VALUES, values))
    for name, key in SECRET_FILE.findall(values["config"]):
        assert name in values["secrets"]
        assert f"--from-literal={key}=" in section
    (tmp_path / "secret").write_text("from a file", encoding="utf-8")
    parse(tomllib.loads(SECRET_FILE.sub(str(tmp_path / "secret"), values["config"])), {})
