"""Reading a service's metrics."""

import re

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tests.support.service import PATIENCE_S, Service


def samples(service: Service) -> dict[tuple[str, str], float]:
    """Return the samples of a scrape by name and process, summed over all agents and outcomes."""
    text = httpx2.get(service.client.base_url.join("/metrics"), timeout=PATIENCE_S).text
    found: dict[tuple[str, str], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = (sample.name.removeprefix("smolsessions_"), sample.labels.get("process", ""))
            found[name] = found.get(name, 0.0) + sample.value
    return found


def totals(service: Service) -> dict[str, float]:
    text = service.client.get("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(smolsessions_\S+) (\S+)$", text, re.MULTILINE)}
