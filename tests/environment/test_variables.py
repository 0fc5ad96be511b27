"""Which variables are shown, and what of them."""

from __future__ import annotations

import hashlib

import pytest

from reprokit.environment import variables


def hashed(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ATEN_CPU_CAPABILITY", "avx2"),
        ("MKL_CBWR", "AVX512,STRICT"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
        ("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"),
        ("NCCL_ALGO", "allreduce:ring;allgather:^tree"),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0"),
        ("OMP_PLACES", "{0:4}:4:1"),
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True,max_split_size_mb:512"),
        ("NVIDIA_REQUIRE_CUDA", "cuda>=12.8 brand=unknown,driver>=470,driver<471"),
        ("TF_CUDNN_DETERMINISTIC", "1"),
        ("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F"),
        ("CUDA_VISIBLE_DEVICES", "0,2"),
    ],
)
def test_a_numeric_setting_is_shown_as_it_is(name: str, value: str) -> None:
    assert variables.collect("private", {name: value}) == {name: value}


@pytest.mark.parametrize(
    "name",
    ["HOME", "AWS_SECRET_ACCESS_KEY", "MKL_LICENSE_KEY", "TRITON_API_TOKEN", "OMP_PASSWORD",
     "CUDNN_AUTH_COOKIE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_CACHE_DIR", "TF_CONFIG",
     "NCCL_SOCKET_IFNAME", "PYTORCH_KERNEL_CACHE_PATH", "LD_LIBRARY_PATH", "LD_BIND_NOW", "MALLOC_ARENA_MAX",
     "OMP_PASS", "TRITON_CACHE_REDIS_PW", "omp_num_threads", "OMP_" + "A" * 200],
)  # fmt: skip
def test_a_name_that_is_not_listed_counts_only_in_the_hash(name: str) -> None:
    environment = {name: "hunter2", "MKL_CBWR": "AVX2"}
    for detail in ("private", "full"):
        assert variables.collect(detail, environment) == {"MKL_CBWR": "AVX2"}
    assert variables.other_variables("private", environment) == {
        "count": 1,
        "sha256": hashed(f"{name}=hunter2\n"),
        "values": None,
    }


@pytest.mark.parametrize("detail", ["private", "full"])
@pytest.mark.parametrize(
    "value",
    [
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
        "https://user:pw@example.org/x",
        "AKIAIOSFODNN7EXAMPLE",
        "a\x1b[31m",
    ],
)
def test_a_value_that_looks_like_a_secret_is_hashed_at_any_detail(value: str, detail: str) -> None:
    assert variables.collect(detail, {"MKL_VERBOSE": value}) == {"MKL_VERBOSE": hashed(value)}


@pytest.mark.parametrize(
    "value", ["/home/alice/ptxas", "~/ptxas", "alice/ptxas", "--xla_dump_to=/home/alice", "C:\\Users\\alice"]
)
def test_a_path_is_hashed_unless_detail_is_full(value: str) -> None:
    assert variables.collect("private", {"TRITON_PTXAS_PATH": value}) == {"TRITON_PTXAS_PATH": hashed(value)}
    assert variables.collect("full", {"TRITON_PTXAS_PATH": value}) == {"TRITON_PTXAS_PATH": value}


def test_devices_lose_their_identity_and_keep_their_number() -> None:
    uuid = "GPU-8f3c0c2a-1111-2222-3333-444455556666"
    value = f"{uuid}, MIG-{uuid[4:]}"
    assert variables.shown("CUDA_VISIBLE_DEVICES", value, "private") == "GPU,MIG"
    assert variables.shown("CUDA_VISIBLE_DEVICES", value, "full") == value
    assert variables.shown("CUDA_VISIBLE_DEVICES", "", "private") == ""


def test_preloaded_libraries_are_shown_by_name() -> None:
    value = "/home/alice/lib/libgomp.so.1:/opt/libjemalloc.so.2"
    assert variables.shown("LD_PRELOAD", value, "private") == "libgomp.so.1:libjemalloc.so.2"


def test_the_hash_of_the_others_depends_on_names_and_values_but_not_on_order() -> None:
    first = variables.other_variables("private", {"A": "1", "B": "2"})
    assert first == variables.other_variables("private", {"B": "2", "A": "1"})
    assert first != variables.other_variables("private", {"A": "2", "B": "1"})


@pytest.mark.parametrize("name", ["_", "SHLVL", "GITHUB_RUN_ID", "PYTEST_CURRENT_TEST", "RUNNER_TEMP", "CI"])
def test_the_bookkeeping_of_a_run_is_no_change(name: str) -> None:
    assert variables.other_variables("private", {name: "1", "A": "2"}) == variables.other_variables(
        "private", {"A": "2"}
    )
    assert variables.other_variables("private", {"CIRCUS": "1"})["count"] == 1


def test_a_name_of_odd_bytes_is_hashed_with_the_others() -> None:
    assert variables.collect("full", {"ONEDNN_\udcff": "1"}) == {}
    assert variables.other_variables("private", {"ONEDNN_\udcff": "1"})["count"] == 1


def test_full_detail_shows_what_is_on_no_list_but_no_secret() -> None:
    environment = {
        "MODEL": "large",
        "MY_TOKEN": "hunter2",
        "OMP_NUM_THREADS": "2",
        "SHLVL": "1",
        "A\x1b": "1",
    }
    found = variables.other_variables("full", environment)
    assert (found["count"], found["values"]) == (3, {"MODEL": "large"})
    private = variables.other_variables("private", environment)
    assert private == found | {"values": None}
