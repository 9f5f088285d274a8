"""Settings come from four places, in order, and every mistake is one line that says where it is."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.daemon.preflight import check
from pfl_node.errors import ConfigError
from pfl_node.policies import knobs_of
from pfl_node.settings import PolicySettings, Settings, TaskSettings, TlsSettings, TrainSettings
from pfl_node.settings.load import dump, flag, load_settings
from pfl_node.settings.schema import allowed, is_known, keys, sections


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "exp.toml"
    path.write_text(text, encoding="utf-8")
    return path


def mistake(**sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(**sources)
    line = str(caught.value)
    assert "\n" not in line
    return line


# -- order -----------------------------------------------------------------------------------------------------


def test_without_any_source_the_defaults_hold() -> None:
    assert load_settings() == Settings()


def test_each_source_wins_over_the_one_before(tmp_path: Path) -> None:
    file = written(tmp_path, "seed = 1\n[train]\nlr = 0.1\nbatch = 1\nsteps = 1\n[eval]\nevery = 1\n")
    settings = load_settings(
        config=file,
        environ={"PFL_TRAIN__BATCH": "2", "PFL_TRAIN__STEPS": "2", "PFL_EVAL__EVERY": "2"},
        overrides={"train.steps": "3", "eval.every": "3"},
        sets=["eval.every=4"],
    )
    train = settings.train
    assert (settings.seed, train.lr, train.batch, train.steps, settings.eval.every) == (1, 0.1, 2, 3, 4)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172_800), ("9", 9)]
)
def test_a_duration_has_units_or_is_in_seconds(text: str, seconds: float) -> None:
    settings = load_settings(sets=[f"round.every={text}"])
    assert settings.round.every == seconds
    assert tomllib.loads(dump(settings))["round"]["every"] == seconds


@pytest.mark.parametrize("text", ["10 minutes", "m", "-5m", "0", "10m30", "ten"])
def test_a_duration_that_is_none_says_how_to_write_one(text: str) -> None:
    line = mistake(sets=[f"round.every={text}"])
    assert line.endswith("for 'round.every' in --set: must be a duration such as 90s, 10m or 1h30m, or seconds")


@pytest.mark.parametrize("text", ["20-6", "20:00", "25:00-06:00", "20:00-20:00", "20:00-06:60", "8:00-9:00"])
def test_hours_that_are_none_say_how_to_write_them(text: str) -> None:
    line = mistake(sets=[f"round.hours={text}"])
    assert line.endswith("for 'round.hours' in --set: must be hours of the day such as 20:00-06:00")


def test_the_last_of_two_sets_counts() -> None:
    assert load_settings(sets=["seed=1", "seed=2"]).seed == 2


def test_a_flag_that_is_not_given_changes_nothing(tmp_path: Path) -> None:
    file = written(tmp_path, 'rounds = 7\npeer_seed = ["a:1"]\n')
    settings = load_settings(config=file, overrides={"rounds": None, "peer_seed": []})
    assert (settings.rounds, settings.peer_seed) == (7, ("a:1",))


def test_the_file_may_be_named_in_the_environment_and_a_flag_wins(tmp_path: Path) -> None:
    file = written(tmp_path, "seed = 5\n")
    other = tmp_path / "other.toml"
    other.write_text("seed = 6\n")
    assert load_settings(environ={"PFL_CONFIG": str(file)}).seed == 5
    assert load_settings(config=other, environ={"PFL_CONFIG": str(file)}).seed == 6


# -- spelling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ['policy = "el"\n', '[policy]\nname = "el"\n', 'policy.name = "el"\n'])
def test_a_policy_may_be_named_short_in_a_file(tmp_path: Path, text: str) -> None:
    assert load_settings(config=written(tmp_path, text)).policy.name == "el"


def test_policy_and_task_may_be_named_short_everywhere() -> None:
    assert load_settings(environ={"PFL_POLICY": "el", "PFL_TASK": "t.py:f"}).task.name == "t.py:f"
    assert load_settings(sets=["policy=el"]).policy.name == "el"


def test_knobs_of_policy_and_task_are_kept_with_their_types(tmp_path: Path) -> None:
    file = written(tmp_path, "[policy]\nm = 3\n[task]\nclusters = 2\nangles = [0, 180]\n")
    settings = load_settings(config=file, sets=["policy.quiet=1.5", "task.shuffle=true", "task.kind=plain"])
    assert settings.policy.options == {"m": 3, "quiet": 1.5}
    assert settings.task.options == {"clusters": 2, "angles": [0, 180], "shuffle": True, "kind": "plain"}


def test_naming_another_policy_forgets_the_knobs_of_the_former(tmp_path: Path) -> None:
    file = written(tmp_path, '[policy]\nname = "pens"\nm = 3\n[task]\nindex = 4\nclusters = 3\n')
    assert load_settings(config=file, overrides={"policy.name": "pens"}).policy.options == {"m": 3}
    switched = load_settings(config=file, overrides={"policy.name": "facade"}, sets=["policy.k=3"])
    assert switched.policy.options == {"k": 3}
    other = load_settings(config=file, overrides={"task.name": "mine.py:f"})
    assert (other.task.options, other.task.index) == ({}, 4)


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("PFL_TRAIN__LR", "0.1", "train.lr", 0.1),
        ("PFL_ROUNDS", "3", "rounds", 3),
        ("PFL_INSECURE", "true", "insecure", True),
        ("PFL_RUN", "2026", "run", "2026"),
        ("PFL_RUN", "2026-01-01", "run", "2026-01-01"),
        ("PFL_RUN", "true", "run", "true"),
        ("PFL_RUN", '"quoted"', "run", "quoted"),
        ("PFL_NAME", "ward 3 = mine", "name", "ward 3 = mine"),
        ("PFL_DATA_DIR", "/data/x", "data_dir", Path("/data/x")),
        ("PFL_PEER_SEED", "a:1, b:2", "peer_seed", ("a:1", "b:2")),
        ("PFL_PEER_SEED", '["a:1"]', "peer_seed", ("a:1",)),
        ("PFL_PEER_SEED", "", "peer_seed", ()),
        ("PFL_MEMBERSHIP__TRANSPORT", "grpc", "membership.transport", "grpc"),
        ("PFL_LOG__LEVEL", "debug", "log.level", "debug"),
    ],
)
def test_the_environment_is_read(variable: str, text: str, key: str, value: Any) -> None:
    found: Any = load_settings(environ={variable: text})
    for part in key.split("."):
        found = getattr(found, part)
    assert found == value


def test_knobs_in_the_environment_find_the_policys_own_spelling() -> None:
    both = {"PFL_POLICY": "pens", "PFL_POLICY__T": "9", "PFL_POLICY__N_SAMPLED": "4"}
    settings = load_settings(environ=both, knobs=knobs_of)
    assert settings.policy.options == {"T": 9, "n_sampled": 4}
    assert load_settings(environ={"PFL_POLICY__T": "9"}, sets=["policy.T=7"], knobs=knobs_of).policy.options == {
        "T": 7
    }


def test_an_empty_variable_is_one_that_is_not_set(tmp_path: Path) -> None:
    file = written(tmp_path, "rounds = 7\n")
    empty = dict.fromkeys(("PFL_ROUNDS", "PFL_NAME", "PFL_POLICY", "PFL_TASK__FOLDER"), "")
    assert load_settings(config=file, environ=empty) == Settings(rounds=7)


def test_variables_of_others_are_left_alone() -> None:
    kubernetes = {"PFL_NODE_SERVICE_HOST": "10.0.0.1", "PFL_NODE_PORT_7000_TCP_PORT": "7000", "PFL_NODE_PORT": "x"}
    assert load_settings(environ={"PATH": "/bin", "PFL_DEBUG": "1", **kubernetes}) == Settings()


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("[train]\nlrr = 1\n", "unknown setting 'train.lrr' in FILE: did you mean 'train.lr'?"),
        ("lr = 1\n", "unknown setting 'lr' in FILE: did you mean 'train.lr'?"),
        ("[trian]\nlr = 1\n", "unknown setting 'trian' in FILE: did you mean 'train'?"),
        ("[eval]\nzzz = 1\n", "unknown setting 'eval.zzz' in FILE: known: batch, every, on"),
        ("[evaluate]\non = []\n", "unknown setting 'evaluate' in FILE: did you mean 'eval'?"),
        (
            "[rounds]\nevery = '10m'\n",
            "'rounds' in FILE is a setting, not a section: must be a whole number above 0; "
            "did you mean the section [round]?",
        ),
        ("[seed]\n", "'seed' in FILE is a setting, not a section: must be a whole number at least 0"),
        ("train = 3\n", "'train' in FILE is a section: write train.KEY = VALUE"),
        (
            "round = 3\n",
            "'round' in FILE is a section: write round.KEY = VALUE; did you mean the setting 'rounds'?",
        ),
        ("[train]\nlr = 'fast'\n", "bad value 'fast' for 'train.lr' in FILE: must be a number above 0"),
        ("[train]\nlr = nan\n", "bad value nan for 'train.lr' in FILE: must be a number above 0"),
        ("[round]\npatience = inf\n", "bad value inf for 'round.patience' in FILE: must be a number above 0"),
        ("rounds = 0\n", "bad value 0 for 'rounds' in FILE: must be a whole number above 0"),
        ("rounds = 1.5\n", "bad value 1.5 for 'rounds' in FILE: must be a whole number above 0"),
        ("insecure = 'maybe'\n", "bad value 'maybe' for 'insecure' in FILE: must be true or false"),
        ("peer_seed = 'a:1'\n", "bad value 'a:1' for 'peer_seed' in FILE: must be a list of texts"),
        ("peer_seed = [1]\n", "bad value [1] for 'peer_seed' in FILE: must be a list of texts"),
        ("policy = 3\n", "bad value 3 for 'policy.name' in FILE: must be a text"),
        (
            "device = 'gpu'\n",
            "bad value 'gpu' for 'device' in FILE: must be auto, cpu, cuda, cuda:N, mps, xpu, or cuda:auto, "
            "which spreads the nodes of a run over the GPUs",
        ),
        (
            "[wire]\nencoding = 'fp8'\n",
            "bad value 'fp8' for 'wire.encoding' in FILE: must be one of auto, fp32, fp16, int8",
        ),
        (
            "[wire]\nchunk = 1\n",
            "bad value 1 for 'wire.chunk' in FILE: must be a whole number at least 4096 and at most 1048576",
        ),
    ],
)
def test_a_mistake_in_a_file_is_one_line(tmp_path: Path, text: str, line: str) -> None:
    file = written(tmp_path, text)
    assert mistake(config=file) == line.replace("FILE", str(file))


def misspelt(section: str) -> set[str]:
    swapped = section[1] + section[0] + section[2:]
    return {f"{section}s", section[:-1], swapped, section + section[-1], section.title()} - {section}


@pytest.mark.parametrize("section", sections())
def test_a_misspelt_section_is_never_taken_for_a_setting(tmp_path: Path, section: str) -> None:
    for name in misspelt(section):
        line = mistake(config=written(tmp_path, f"[{name}]\nname = 1\n"))
        assert line.endswith((f"did you mean {section!r}?", f"did you mean the section [{section}]?"))


def test_a_setting_of_a_misspelt_section_is_searched_in_the_nearest_one() -> None:
    assert mistake(sets=["rounds.every=5"]).endswith("did you mean 'round.every'?")
    assert mistake(environ={"PFL_EVLA__BATCH": "5"}).endswith("did you mean 'eval.batch'?")


def test_a_mistake_elsewhere_names_its_source() -> None:
    assert mistake(environ={"PFL_TRAIN__LRR": "1"}) == (
        "unknown setting 'train.lrr' in environment variable PFL_TRAIN__LRR: did you mean 'train.lr'?"
    )
    assert mistake(environ={"PFL_SEED": "x"}) == (
        "bad value 'x' for 'seed' in environment variable PFL_SEED: must be a whole number at least 0"
    )
    assert mistake(overrides={"rounds": "many"}) == (
        "bad value 'many' for 'rounds' in --rounds: must be a whole number above 0"
    )
    assert mistake(sets=["train.lr=0"]) == "bad value 0 for 'train.lr' in --set: must be a number above 0"
    assert mistake(sets=["seeed=0"]) == "unknown setting 'seeed' in --set: did you mean 'seed'?"
    assert mistake(sets=["train=0"]) == "'train' in --set is a section: write train.KEY = VALUE"


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PFL_TRAIN_LR", "PFL_TRAIN__LR"),
        ("PFL_TRAIN_WEIGHT_DECAY", "PFL_TRAIN__WEIGHT_DECAY"),
        ("PFL_POLICY_N_SAMPLED", "PFL_POLICY__N_SAMPLED"),
    ],
)
def test_a_variable_with_one_underscore_is_told_of_the_second(variable: str, meant: str) -> None:
    assert mistake(environ={variable: "1"}) == f"unknown environment variable {variable}: did you mean {meant}?"


def test_an_empty_text_is_a_mistake_and_not_the_working_directory(tmp_path: Path) -> None:
    assert mistake(overrides={"data_dir": ""}) == "'data_dir' in --data-dir is empty: must be a text"
    assert mistake(sets=["name="]) == "'name' in --set is empty: must be a text"
    assert mistake(overrides={"rounds": ""}) == "'rounds' in --rounds is empty: must be a whole number above 0"
    assert load_settings(sets=["task.folder="]).task.options == {"folder": ""}


@pytest.mark.parametrize("text", ["seed", "=3", ""])
def test_a_set_without_a_key_or_value_says_how(text: str) -> None:
    assert mistake(sets=[text]) == f"--set {text!r} must be KEY=VALUE, for example --set train.lr=0.1"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    gone = tmp_path / "gone.toml"
    assert mistake(config=gone) == f"cannot read {gone}: No such file or directory"
    assert mistake(config=tmp_path) == f"cannot read {tmp_path}: Is a directory"
    broken = written(tmp_path, "seed = = 3\n")
    assert mistake(config=broken).startswith(f"{broken} is not valid TOML: ")
    broken.write_bytes(b"name = '\xff'\n")
    assert mistake(config=broken).startswith(f"{broken} is not valid TOML: ")


# -- addresses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(listen="localhost:7000"),
        Settings(listen="[::1]:7000", peer_seed=("localhost:7000", "127.0.0.2:7000")),
        Settings(listen="[::1]:7000", peer_seed=("node-1.example:7000", "10.0.0.1:7000"), insecure=True),
        Settings(listen="0.0.0.0:7000", advertise="node1:7000", insecure=True),
        Settings(listen="192.168.0.3:0", insecure=True),
        Settings(listen="0.0.0.0:7000", peer_seed=("seed:7000",), insecure=True),
    ],
)
def test_good_addresses_pass(settings: Settings) -> None:
    check(settings)


HOST_PORT = "must be HOST:PORT, for example 127.0.0.1:7000 or [::1]:7000"
PORT = "the port must be a number from 0 to 65535"
NOT_LOOPBACK = (
    "is not loopback, so connections need TLS: give --data-dir DIR, where `pfl-node ca init` and "
    "`pfl-node ca issue --data-dir DIR` put a certificate (or --key, --cert and --ca), or add --insecure "
    "if you trust this network"
)
CANNOT_DIAL = "cannot be reached by other nodes: set --advertise HOST:PORT"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            Settings(listen="7000"),
            f"listen '7000' {HOST_PORT}",
        ),
        (
            Settings(listen="::1:7000"),
            f"listen '::1:7000' {HOST_PORT}",
        ),
        (Settings(listen="a b:1"), f"listen 'a b:1' {HOST_PORT}"),
        (Settings(listen="127.0.0.1:x"), f"listen '127.0.0.1:x': {PORT}"),
        (
            Settings(listen="127.0.0.1:70000"),
            "listen '127.0.0.1:70000': the port must be a number from 0 to 65535",
        ),
        (Settings(peer_seed=("a:0",)), "peer_seed 'a:0': the port must be a number from 1 to 65535"),
        (Settings(listen="10.0.0.1:1"), f"listen '10.0.0.1:1' {NOT_LOOPBACK}"),
        (Settings(advertise="node1:1"), f"advertise 'node1:1' {NOT_LOOPBACK}"),
        (Settings(peer_seed=("node1:1",)), f"peer_seed 'node1:1' {NOT_LOOPBACK}"),
        (
            Settings(listen="10.0.0.1:1", tls=TlsSettings(on=False)),
            "listen '10.0.0.1:1' is not loopback: to run without TLS, add --insecure",
        ),
        (
            Settings(insecure=True, tls=TlsSettings(on=True)),
            "--tls and --insecure exclude each other: leave one out",
        ),
        (Settings(listen="0.0.0.0:1", insecure=True), f"listen '0.0.0.0:1' {CANNOT_DIAL}"),
        (Settings(advertise="[::]:1", insecure=True), f"advertise '[::]:1' {CANNOT_DIAL}"),
    ],
)
def test_bad_addresses_are_one_line(settings: Settings, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check(settings)
    assert str(caught.value) == line


# -- the way back ----------------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
knobs = st.dictionaries(texts.filter(lambda k: k not in {"", "name", "index", "nodes"}), values, max_size=4)


@given(options=knobs, name=texts, lr=st.floats(1e-9, 1e9), seeds=st.lists(texts, max_size=3))
def test_what_is_dumped_is_read_back_unchanged(
    options: dict[str, Any], name: str, lr: float, seeds: list[str]
) -> None:
    settings = Settings(
        name=name,
        peer_seed=tuple(seeds),
        data_dir=Path("/data/with space"),
        policy=PolicySettings(name=name),
        task=TaskSettings.model_validate({"name": "digits", **options}),
        train=TrainSettings(lr=lr),
    )
    assert Settings.model_validate(tomllib.loads(dump(settings))) == settings


def test_the_dump_is_a_config_file(tmp_path: Path) -> None:
    settings = load_settings(sets=["train.lr=0.3", "policy=facade", "policy.k=2", "rounds=5"])
    assert load_settings(config=written(tmp_path, dump(settings))) == settings


def test_the_dump_shows_what_is_not_set_as_a_comment() -> None:
    assert "# lr = a number above 0" in dump(Settings()).splitlines()


# -- the tree --------------------------------------------------------------------------------------------------


def test_every_key_says_what_it_may_be() -> None:
    for key in keys():
        assert allowed(key), key


def test_no_section_reads_its_own_source() -> None:
    """Pydantic would, when a node starts, for descriptions that only `make docs` needs."""
    for cls, _ in keys().values():
        assert not cls.model_config.get("use_attribute_docstrings"), cls


def test_a_known_key_is_a_field_or_a_knob() -> None:
    assert is_known("train.lr")
    assert is_known("policy.anything")
    assert not is_known("train")
    assert not is_known("train.anything")
    assert not is_known("policy.")
    assert not is_known("policy.a.b")
    assert set(sections()) >= {"policy", "task", "train", "wire"}


def test_flags_are_spelled_after_their_keys() -> None:
    assert [flag(k) for k in ("peer_seed", "policy.name", "name", "log.level")] == [
        "--peer-seed",
        "--policy",
        "--name",
        "--log-level",
    ]


@pytest.mark.parametrize("key", ["guard.gate", "guard.outliers", "round.quorum", "aggregate.byzantine"])
def test_true_is_no_number(key: str) -> None:
    with pytest.raises(ConfigError, match=f"bad value True for '{key}' in --set: must be a (whole )?number"):
        load_settings(sets=[f"{key}=true"])


def test_the_attack_called_nan_is_no_number_and_one_place_is_a_list() -> None:
    attack = load_settings(sets=["attack.kind=nan", "attack.nodes=3"]).attack
    assert attack.kind == ("nan",)
    assert attack.nodes == (3,)
    assert load_settings(sets=["attack.kind=nan,alie", "attack.nodes=1,3"]).attack.nodes == (1, 3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("attack.kind=sing_flip", "must be a list of any of sign_flip, scaled,"),
        ("attack.nodes=n001", "must be a list of whole numbers at least 0"),
        ("privacy.dp_delta=2", "must be a number above 0 and below 1"),
        ("wire.connect_timeout=1e12", "must be a number above 0 and at most 86400"),
        ("wire.base_timeout=1e26", "must be a number above 0 and at most 86400"),
        ("wire.min_bandwidth=1e-300", "must be a number at least 1"),
        ("guard.name=true", "did you mean 'guard.names'"),
        ("eval.on=train", "must be a list of any of val, test"),
    ],
)
def test_what_may_be_said_is_said_exactly(given: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        load_settings(sets=[given])


@pytest.mark.parametrize("key", ["oracle_budget", "oracle_total"])
def test_an_answer_that_costs_more_than_there_is_is_a_mistake(key: str) -> None:
    given = ["privacy.oracle_epsilon=0.15", f"privacy.{key}=0.1"]
    check(load_settings(sets=given))  # nobody asks for it
    with pytest.raises(ConfigError, match=f"privacy.oracle_epsilon = 0.15, more than privacy.{key} = 0.1"):
        check(load_settings(sets=[*given, "privacy.oracle=true"]))
