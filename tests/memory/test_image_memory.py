"""Images cost memory only while they are decoded, as measured on a real process."""

import io
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import PIL.Image
import psutil
import pytest
from smolagents.memory import TaskStep
from smolagents.models import ChatMessage, MessageRole, get_clean_message_list

from smolsessions.agents.values.images import image_from_bytes, image_to_bytes
from smolsessions.agents.values.media import drop_pixels
from tests.support.service import Service, wait_until
from tests.support.tiers import deep, mostly_deep
from tests.support.turns import encoded

MB = 1024 * 1024
SIDE = 4900  # 24 megapixels: 72 MB as pixels
TURNS = 4
LEFT_MB = 200
BODIES = 6
HELD_MB = 80  # of the bodies, at least


def square(form: str, side: int = SIDE, **options: object) -> str:
    return encoded(PIL.Image.new("RGB", (side, side), (1, 2, 3)), form, **options)


def rss_mb(service: Service) -> float:
    return float(psutil.Process(service.process.pid).memory_info().rss / MB)


@pytest.mark.parametrize("form", mostly_deep(["JPEG", "PNG"], fast=["JPEG"]))
def test_neither_warm_sessions_nor_the_allocator_keep_the_pixels_of_large_images(service: Service, form: str) -> None:
    image = square(form)
    service.play({"say": "ready"})
    before = rss_mb(service)
    turns = [service.play({"prompt": True}, images=[image]) for _ in range(TURNS)]
    wait_until(lambda: rss_mb(service) < before + LEFT_MB)
    for turn in turns:
        assert service.client.delete(f"/conversations/{turn['conversation_id']}").status_code == 204
    wait_until(lambda: rss_mb(service) < before + LEFT_MB)


@pytest.mark.parametrize(("form", "options"), [pytest.param("WEBP", {}, marks=deep), ("JPEG", {"progressive": True})])
def test_images_of_costly_formats_have_half_the_pixels(service: Service, form: str, options: dict[str, object]) -> None:
    refused = service.post("/turn", message="Look.", images=[square(form, 3600, **options)])
    assert (refused.status_code, refused.json()["code"]) == (413, "too_large"), refused.text
    assert service.play({"say": "seen"}, images=[square(form, 3500, **options)])["reply"] == "seen"


def files() -> Iterator[tuple[str, bytes]]:
    noise = PIL.Image.merge("RGBA", [PIL.Image.effect_noise((40, 30), 60) for _ in "RGBA"])
    frames = [PIL.Image.effect_noise((40, 30), 60) for _ in range(3)]
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    made: dict[str, tuple[str, PIL.Image.Image, dict[str, Any]]] = {
        **{f"PNG {mode}": ("PNG", noise.convert(mode), {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")},
        "PNG with a clear colour": ("PNG", noise.convert("P"), {"transparency": 3}),
        "PNG with a palette of clear colours": ("PNG", noise.quantize(20), {"transparency": bytes(range(20))}),
        "PNG with a profile": ("PNG", noise, {"icc_profile": b"a profile", "dpi": (72, 72), "exif": exif}),
        "PNG of several": ("PNG", frames[0], {"save_all": True, "append_images": frames[1:]}),
        **{f"JPEG {mode}": ("JPEG", noise.convert(mode), {}) for mode in ("L", "RGB", "CMYK")},
        "JPEG with all": ("JPEG", noise.convert("RGB"), {"progressive": True, "icc_profile": b"p", "exif": exif}),
        "GIF": ("GIF", noise.convert("P"), {"transparency": 3}),
        "GIF of several": ("GIF", frames[0], {"save_all": True, "append_images": frames[1:]}),
        "WEBP": ("WEBP", noise, {}),
        "WEBP of several": ("WEBP", frames[0], {"save_all": True, "append_images": frames[1:]}),
    }
    for name, (form, image, options) in made.items():
        buffer = io.BytesIO()
        image.save(buffer, form, **options)
        yield name, buffer.getvalue()


FILES = dict(files())


def sent(image: PIL.Image.Image) -> Any:
    """Return smolagents' message to a provider with an image, or the error."""
    message = ChatMessage(role=MessageRole.USER, content=[{"type": "image", "image": image}])
    try:
        return get_clean_message_list([message], convert_images_to_image_urls=True)
    except Exception as error:  # noqa: BLE001 - what bare smolagents cannot send either
        return repr(error)


@pytest.mark.parametrize("name", FILES)
def test_an_image_is_sent_to_models_as_bare_smolagents_sends_it(name: str) -> None:
    data = FILES[name]
    image = image_from_bytes(data)
    bare: PIL.Image.Image = PIL.Image.open(io.BytesIO(data))
    bare.load()
    expected = sent(bare)
    assert sent(image) == expected
    assert image.undecoded == data
    assert (image.tobytes(), image.format, type(image).__name__) == (bare.tobytes(), bare.format, type(bare).__name__)
    assert sent(image) == expected
    drop_pixels([TaskStep("Look.", [image])])
    assert (image.undecoded, image_to_bytes(image)) == (data, data)
    assert sent(image) == expected


def test_a_changed_image_keeps_its_pixels() -> None:
    image = image_from_bytes(FILES["PNG RGB"])
    image.putpixel((0, 0), (1, 2, 3))
    drop_pixels([TaskStep("Look.", [image])])
    assert image.getpixel((0, 0)) == (1, 2, 3)
    assert image_to_bytes(image) != FILES["PNG RGB"]
    assert deepcopy(image).getpixel((0, 0)) == (1, 2, 3)


def test_an_image_whose_palette_or_size_has_changed_is_not_stored_as_its_file() -> None:
    striped = PIL.Image.new("P", (4, 1))
    striped.putpalette([255, 0, 0])
    buffer = io.BytesIO()
    striped.save(buffer, "PNG")
    image = image_from_bytes(buffer.getvalue())
    image.load()
    assert image_to_bytes(image) == buffer.getvalue()
    assert image_from_bytes(image_to_bytes(image.transpose(PIL.Image.Transpose.ROTATE_90))).size == (1, 4)
    image.putpalette([0, 0, 255])
    assert image_from_bytes(image_to_bytes(image)).convert("RGB").getpixel((0, 0)) == (0, 0, 255)


def test_aborted_request_bodies_are_freed(service: Service) -> None:
    before = rss_mb(service)
    address = service.client.base_url.host, service.client.base_url.port or 80
    head = b"POST /turn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000000\r\nContent-Type: application/json\r\n"
    with ExitStack() as stack:
        for _ in range(BODIES):
            stack.enter_context(socket.create_connection(address)).sendall(head + b"\r\n" + bytes(19_000_000))
        wait_until(lambda: rss_mb(service) > before + HELD_MB)
    wait_until(lambda: rss_mb(service) < before + HELD_MB / 2)
