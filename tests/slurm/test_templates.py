"""The templates that come with slurmmesh, and those that sites write on top of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.template import render, template_names, template_text
from slurmmesh.slurm.template_check import NEEDED, problems_of, samples

DOCS = Path(__file__).parents[2] / "docs" / "templates.md"
EXTENDS = '{% extends "default" %}\n'
EXPORT = re.compile(r'^export (\w+)="\$\{(\w+)-', re.MULTILINE)


def job(template: str, **options: Any) -> SlurmJob:
    paths = {"job_root": "/shared/jobs", "chdir": "/shared/work", "python": "/opt/python"}
    return SlurmJob("train.py", template=template, **paths, **options)


def environment_of(script: str, **preset: str) -> dict[str, str]:
    """What bash makes of the setup and the settings of a script, from nothing but ``preset``."""
    start = script.index("# What the site needs before the program can run.")
    part = script[start : script.index("export SLURMMESH_JOB_FOLDER=")]
    done = subprocess.run(
        ["/bin/bash", "-c", f"{part}\n/usr/bin/env -0"], env=preset, capture_output=True, check=True
    )
    assert done.stderr == b""
    pairs = [line.split("=", 1) for line in done.stdout.decode().split("\0")[:-1]]
    shell = {"PWD", "SHLVL", "_"}
    return {name: value for name, value in pairs if name not in shell}


# ------------------------------------------------------------------ ours


@pytest.fixture(params=template_names())
def ours(request: pytest.FixtureRequest) -> str:
    return str(request.param)


WITH_ALL = {"gpus_per_node": 8, "cpus_per_task": 96, "network": "disable_rdzv_get"}


def test_there_are_those_of_the_docs() -> None:
    assert template_names() == ["cpu", "default", "h200", "mi300", "mi300-slingshot"]
    listed = re.findall(r"^\| `([\w-]+)` \|", DOCS.read_text(), re.MULTILINE)
    assert set(template_names()) <= set(listed)


def test_each_setting_has_a_default_and_gives_way_to_one_that_is_there(ours: str) -> None:
    script = render(job(ours, **WITH_ALL))
    variables = dict(EXPORT.findall(script))
    assert all(name == fallback for name, fallback in variables.items())
    defaults = environment_of(script)
    assert defaults.keys() == variables.keys()
    for value in ("mine", ""):
        mine = dict.fromkeys(variables, value)
        assert environment_of(script, **mine) == mine


def test_setup_and_env_win_over_each_setting(ours: str) -> None:
    variables = [name for name, _ in EXPORT.findall(render(job(ours, **WITH_ALL)))]
    by_setup = job(ours, **WITH_ALL, setup=[f"export {name}=setup" for name in variables])
    assert environment_of(render(by_setup)) == dict.fromkeys(variables, "setup")
    env = {name: "env" for name in variables if not name.startswith("SLURMMESH_JOB_")}
    assert environment_of(render(job(ours, **WITH_ALL, env=env))) == env


def test_each_setting_is_explained_in_the_script_and_in_the_docs(ours: str) -> None:
    lines = render(job(ours, **WITH_ALL)).splitlines()
    docs = DOCS.read_text()
    for at, line in enumerate(lines):
        if match := EXPORT.match(line):
            above = [each for each in lines[:at] if not each.startswith("export")][-1]
            assert above.startswith("# "), f"nothing is said of {line}"
            assert f"`{match[1]}`" in docs


@pytest.mark.parametrize("template", ["mi300", "mi300-slingshot"])
def test_only_slurms_mask_of_gpus_is_left(template: str) -> None:
    masks = {
        **dict.fromkeys(["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"], "0"),
        "GPU_DEVICE_ORDINAL": "0",
    }
    slurms = {"ROCR_VISIBLE_DEVICES": "2,3"}
    left = environment_of(render(job(template)), **masks, **slurms)
    assert {name: left[name] for name in left if name in masks or name in slurms} == slurms
    wished = render(job(template, env={"HIP_VISIBLE_DEVICES": "1"}))
    assert environment_of(wished, **masks, **slurms)["HIP_VISIBLE_DEVICES"] == "1"


def test_the_cpu_template_hides_gpus() -> None:
    assert environment_of(render(job("cpu")))["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.parametrize(
    ("options", "on_node", "threads"),
    [
        ({"cpus_per_task": 96, "gpus_per_node": 8}, "1", "12"),
        ({"cpus_per_task": 4, "gpus_per_node": 8}, "1", "1"),
        ({"cpus_per_task": 4}, "1", "4"),
        ({"gres": "gpu:mi300x:4"}, "96", "24"),
        ({"gres": "gpu:mi300x:4"}, "3", "1"),
        ({}, "96", "96"),
        ({}, "", "1"),
        ({"controller": Resources(cpus_per_task=2)}, "96", "1"),
        ({"controller": Resources(), "cpus_per_task": 64, "gpus_per_node": 8}, "2", "8"),
    ],
)
def test_threads_share_the_cpus_of_a_host(
    options: dict[str, Any], on_node: str, threads: str
) -> None:
    for template in ("mi300", "cpu", "h200"):
        found = environment_of(render(job(template, **options)), SLURM_CPUS_ON_NODE=on_node)
        assert found["OMP_NUM_THREADS"] == threads


def test_slingshot_asks_for_the_jobs_vni_unless_told_otherwise() -> None:
    assert "#SBATCH --network=job_vni,single_node_vni\n" in render(job("mi300-slingshot"))
    script = render(job("mi300-slingshot", network="no_vni"))
    assert re.findall("--network=.*", script) == ["--network=no_vni"]
    assert "alt_read" not in script
    script = render(job("mi300-slingshot", network="job_vni,disable_rdzv_get"))
    assert environment_of(script)["FI_CXI_RDZV_PROTO"] == "alt_read"


def test_slingshot_names_the_interface_and_a_job_another() -> None:
    assert environment_of(render(job("mi300-slingshot")))["SLURMMESH_INTERFACE"] == "hsn"
    script = render(job("mi300-slingshot", interface="=hsn1"))
    assert script.index("SLURMMESH_INTERFACE-hsn") < script.index("SLURMMESH_INTERFACE==hsn1")


# ------------------------------------------------------------------ a site's own


@pytest.fixture
def site(tmp_path: Path) -> Any:
    """``site(text, name)``: a template in a file; returns its path."""

    def write(text: str | bytes, name: str = "site.sh.j2") -> str:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    return write


def example_of_the_docs() -> str:
    (text,) = re.findall(r"```jinja\n(.*?)```", DOCS.read_text(), re.DOTALL)
    return text


def test_the_example_of_the_docs_is_good(site: Any) -> None:
    path = site(example_of_the_docs())
    assert problems_of(path) == []
    script = render(job(path))
    assert "\nmodule load rocm" in script
    assert "#SBATCH --gpu-bind=none\n" in script
    own = environment_of(script.replace("\nmodule load", "\n: module load"))
    assert own["NCCL_IB_GID_INDEX"] == "3"
    assert own["GPU_MAX_HW_QUEUES"] == "4"
    assert own["HIP_FORCE_DEV_KERNARG"] == "1"


def test_files_extend_files_beside_them_and_ours(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site('{% extends "cpu" %}\n{% block setup %}\necho base\n{% endblock %}', "base.sh.j2")
    own = '{% extends "base.sh.j2" %}\n{% block setup %}\n{{ super() }}\necho own\n{% endblock %}'
    path = site(own)
    script = render(job(path))
    assert "\necho base\n" in script
    assert script.index("echo base") < script.index("echo own") < script.index("KMP_BLOCKTIME")
    other = site('{% extends "../base.sh.j2" %}', "sub/other.j2")
    assert "echo base" in render(job(other))
    monkeypatch.chdir(Path(path).parent)
    assert render(job("site.sh.j2")).replace("site.sh.j2", path) == script


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\n\n{{ nope }}", "line 3 of PATH: 'nope' is undefined; docs/templates.md lists"),
        ("{{ job.gpus }}", "line 1 of PATH: .*has no attribute 'gpus'"),
        ("a\n{% for %}", "line 2 of PATH: Expected"),
        ("a\n{% if x %}", "line 2 of PATH: Unexpected end of template"),
        ("{{ job | shell }}", "line 1 of PATH: No filter named 'shell'"),
        ('{% extends "site.sh.j2" %}', "comes back to itself"),
        ('\n{% extends "defualt" %}', "line 2 of PATH: there is no template 'defualt': give one"),
        ('{% extends "gone.j2" %}', r"line 1 of PATH: template '.*/gone\.j2' cannot be read: No"),
        ('{% extends "default" %}{% block setup %}\n{{ 1 / 0 }}{% endblock %}', "line 2 of PATH"),
        ("{% for i in range(10 ** 9) %}{% endfor %}", "Range too big"),
        ("{{ ''.__class__.__mro__ }}", "line 1 of PATH: .*unsafe"),
        ("{{ job.submit() }}", r"may read the job, not call its submit\(\)"),
        ("{{ 'a\nb' | directive_value('--comment') }}", "line 2 of PATH: --comment: .* newline"),
        (b"\xff\xfe\x00", "cannot be read: 'utf-8'"),
    ],
)
def test_a_mistake_is_told_with_its_place(site: Any, text: str | bytes, told: str) -> None:
    path = site(text)
    with pytest.raises(UsageError, match=told.replace("PATH", re.escape(path))) as caught:
        render(job(path))
    assert f"template {path!r}" in str(caught.value)


def test_a_file_that_changes_is_read_anew(site: Any) -> None:
    path = site(EXTENDS + "{% block setup %}\necho one\n{% endblock %}")
    assert "\necho one\n" in render(job(path))
    site(EXTENDS + "{% block setup %}\necho two\n{% endblock %}")
    assert "\necho two\n" in render(job(path))
    Path(path).unlink()
    with pytest.raises(UsageError, match="cannot be read"):
        render(job(path))


def test_what_is_no_file_is_told(site: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no template 'gpu': give one of cpu, default"):
        render(job("gpu"))
    for path, why in [(tmp_path / "gone.j2", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(UsageError, match=f"template '{path}' cannot be read: {why}"):
            render(job(str(path)))


# ------------------------------------------------------------------ the check


def test_ours_are_good(ours: str) -> None:
    assert problems_of(ours) == []


def test_what_is_needed_is_in_the_default() -> None:
    lines = render(samples("default")["plain"]).splitlines()
    for beginning in NEEDED:
        assert [line for line in lines if line.startswith(beginning)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (EXTENDS + "{% block setup %}\nif true; then\n{% endblock %}", ["bash: syntax error"]),
        (
            EXTENDS + "{% block setup %}\necho )\n{% endblock %}",
            ["bash: syntax error near unexpected token `)', in the script's line 'echo )'"],
        ),
        (
            EXTENDS + "{% block directives %}\n#SBATCH -N 4\n#SBATCH --output=x\n{% endblock %}",
            ["'#SBATCH -N 4': slurmmesh sets this itself", "'#SBATCH --output=x': slurmmesh"],
        ),
        (
            EXTENDS + "{% block setup %}\n#SBATCH --account=me\n{% endblock %}",
            ["Slurm does not see '#SBATCH --account=me': it stands below the first command"],
        ),
        (
            EXTENDS + '{% block run %}\n"$sm_python" x\n{% endblock %}',
            ['no line is exec ... "$sm_controller"', 'no line is exec ... "$sm_launcher"'],
        ),
        ("#!/bin/sh\necho hello", ["'#SBATCH --no-kill' is missing", "umask", "SLURMMESH_NODES"]),
        ("echo hello", ["does not begin with #!/bin/bash"]),
        (EXTENDS + "{% block setup %}\n{{ job.gpus_per_node + '' }}\n{% endblock %}", ["line 3"]),
        (
            EXTENDS + "{% block setup %}{% if job.array %}{{ oh }}{% endif %}{% endblock %}",
            ["'oh' is undefined", "[an array]"],
        ),
    ],
)
def test_a_bad_one_is_found_out(site: Any, text: str, told: list[str]) -> None:
    try:
        problems = "\n".join(problems_of(site(text)))
    except UsageError as error:
        problems = str(error)
    for each in told:
        assert each in problems


def test_a_run_block_of_its_own_may_wrap_the_controller(site: Any) -> None:
    default = template_text("default")
    run = default[default.index("{% block run %}") :].replace("exec ", "exec numactl --localalloc ")
    assert problems_of(site(EXTENDS + run)) == []
