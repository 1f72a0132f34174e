"""NVRTC compiles the kernels for both architectures; no GPU is needed for that."""

from __future__ import annotations

import pytest

from reference_mechanisms.kernels.weight12.compiling import (
    READING_ENTRY,
    compile_cubin,
    compile_text,
    has_wgmma,
    reading_source,
)
from reference_mechanisms.kernels.weight12.schedule import (
    BLACKWELL_RTX,
    BLOCKS,
    EIGHTS,
    HOPPER,
    WAYS_BY_NAME,
    Eight,
    Split,
    settled,
    split,
    variant,
)

pytest.importorskip("cuda.core", reason="cuda.core is not installed: pip install -e '.[gpu]'")
pathfinder = pytest.importorskip("cuda.pathfinder", reason="cuda.pathfinder is not installed")

DEVICES = {"sm_90": HOPPER, "sm_120": BLACKWELL_RTX}
ELF = b"\x7fELF"


@pytest.fixture(scope="module", autouse=True)
def _nvrtc() -> None:
    try:
        pathfinder.load_nvidia_dynamic_lib("nvrtc")
    except pathfinder.DynamicLibNotFoundError:
        pytest.skip("NVRTC is not installed: it comes with torch for CUDA, or as nvidia-cuda-nvrtc")


@pytest.mark.parametrize("raw", [False, True], ids=["packed", "twin"])
@pytest.mark.parametrize("tokens", [8, 16, 32, 64])
@pytest.mark.parametrize(("architecture", "room"), DEVICES.items(), ids=DEVICES)
def test_every_kernel_compiles(architecture: str, room: int, tokens: int, raw: bool) -> None:
    for shape in ((4096, 4096), (4096, 12288)):
        kernel = variant(split(*shape), tokens, raw=raw, room=room)
        cubin = compile_cubin(kernel, architecture)
        assert cubin.startswith(ELF)
        assert b"weight12_stream" in cubin


@pytest.mark.parametrize("name", [name for name in WAYS_BY_NAME if name != "plain"])
@pytest.mark.parametrize(("architecture", "room"), DEVICES.items(), ids=DEVICES)
def test_every_way_compiles(architecture: str, room: int, name: str) -> None:
    choice, shape = dict.fromkeys(BLOCKS, WAYS_BY_NAME[name]), (4096, 4096)
    found, ways = settled(split(*shape), *shape, choice, wgmma=has_wgmma(architecture))
    for tokens in (1, 16, 32):
        kernel = variant(found, tokens, raw=False, room=room, choice=ways, gated=tokens == 16)
        assert kernel.way == WAYS_BY_NAME[name] or kernel.way.wgmma < WAYS_BY_NAME[name].wgmma
        assert compile_cubin(kernel, architecture).startswith(ELF)


@pytest.mark.parametrize("warps_k", [4, 2])
@pytest.mark.parametrize("raw", [False, True], ids=["packed", "twin"])
def test_kernels_with_wgmma_compile_at_every_number_of_tokens(warps_k: int, raw: bool) -> None:
    choice = dict.fromkeys(BLOCKS, WAYS_BY_NAME["wgmma"])
    found = Split(rows=6144, tiles=16, cluster=4, warps_k=warps_k)
    for tokens in (8, 16, 32, 64):
        kernel = variant(found, tokens, raw=raw, choice=choice)
        assert kernel.blocks == tokens // 8
        assert compile_cubin(kernel, "sm_90").startswith(ELF)
    kernel = variant(found, 16, raw=True, choice=choice, eight="fp8")
    assert compile_cubin(kernel, "sm_90").startswith(ELF)


@pytest.mark.parametrize("eight", EIGHTS)
@pytest.mark.parametrize(("architecture", "room"), DEVICES.items(), ids=DEVICES)
def test_kernels_of_eight_bits_compile(architecture: str, room: int, eight: Eight) -> None:
    for tokens in (1, 16):
        kernel = variant(split(4096, 12288), tokens, raw=True, room=room, eight=eight)
        assert compile_cubin(kernel, architecture).startswith(ELF)


@pytest.mark.parametrize("architecture", DEVICES)
def test_the_reading_kernel_compiles(architecture: str) -> None:
    cubin = compile_text(reading_source(), architecture)
    assert cubin.startswith(ELF)
    assert READING_ENTRY.encode() in cubin


def test_a_wrong_program_is_refused_with_the_compilers_words() -> None:
    with pytest.raises(Exception, match="undefined_thing"):
        compile_text("__global__ void wrong() { undefined_thing(); }", "sm_90")
