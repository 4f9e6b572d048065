"""What lies on the disk, what could draft for what, and the offer of a draft."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_models import Made, words

from specli import shelf
from specli.config import config_path
from specli.pairing import PairFigures, measure, recalled


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without models, and directories of our own."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HF_HUB_CACHE", "HF_HOME", "LLAMA_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    for name in ("CONFIG", "CACHE", "DATA"):
        monkeypatch.setenv(f"SPECLI_{name}_DIR", str(tmp_path / name.lower()))
    return home


def specli(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "specli", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=dict(os.environ)
    )


def listed(*arguments: object) -> dict[str, dict[str, object]]:
    done = specli("models", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {row["name"]: row for row in json.loads(done.stdout) if row["folder"] != "demo"}


def test_each_programs_folder_is_searched(own_home: Path, tiny_draft: Path, tmp_path: Path) -> None:
    places = {
        "specli": tmp_path / "data" / "models",
        "Hugging Face": own_home / ".cache/huggingface/hub/models--a--b/snapshots/0",
        "llama.cpp": own_home / (".cache" if sys.platform == "linux" else "Library/Caches") / "llama.cpp",
        "LM Studio": own_home / ".lmstudio/models/a/b",
        "config": tmp_path / "mine",
    }
    for i, (folder, place) in enumerate(places.items()):
        place.mkdir(parents=True)
        Made(words(300), seed=i).write(place / f"in-{folder.replace(' ', '-').lower()}.gguf")
    config_path().parent.mkdir(exist_ok=True)
    config_path().write_text(f'[models]\ndirs = ["{places["config"]}"]\n')
    found = {str(row["folder"]): name for name, row in listed().items()}
    assert found == {folder: f"in-{folder.replace(' ', '-').lower()}" for folder in places}


def test_what_is_inside_is_told(tiny_target: Path) -> None:
    rows = listed("--dir", tiny_target.parent)
    target = rows["tiny-target-mtp"]
    assert target["heads"] == "mtp" and target["quantisation"] == "Q8_0" and target["architecture"] == "hy_v3"
    assert target["parameters"] == 1_981_696 and target["bytes"] == 2_115_328
    # the third has the vocabulary too, whatever it is worth
    drafts = [Path(str(d)).name for d in target["drafts"]]  # type: ignore[attr-defined]
    assert drafts == ["tiny-draft.gguf", "tiny-hybrid.gguf"]
    assert rows["tiny-draft"]["drafts"] == []


def test_broken_and_split_files_are_listed_as_what_they_are(tmp_path: Path, tiny_draft: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "cut.gguf").write_bytes(tiny_draft.read_bytes()[:100_000])
    (place / "part-00001-of-00002.gguf").write_bytes(tiny_draft.read_bytes())
    (place / "mmproj-x.gguf").write_bytes(tiny_draft.read_bytes())
    (place / "link.gguf").symlink_to(tiny_draft)
    (place / "whole.gguf").write_bytes(tiny_draft.read_bytes())
    rows = listed("--dir", place)
    assert set(rows) == {"cut", "part-00001-of-00002", "link", "whole"}
    assert "incomplete" in str(rows["cut"]["problem"])
    assert "part-00002-of-00002.gguf is missing" in str(rows["part-00001-of-00002"]["problem"])
    assert rows["link"]["problem"] is None
    done = specli("models", "--dir", place)
    assert done.returncode == 0 and "incomplete" in done.stdout


def test_a_vocabulary_of_another_family_is_never_proposed(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    Made(words(320), width=128, layers=4).write(place / "target.gguf")
    Made(words(320)).write(place / "same.gguf")
    Made(words(320, stem="other")).write(place / "other.gguf")
    rows = listed("--dir", place)
    assert [Path(str(d)).name for d in rows["target"]["drafts"]] == ["same.gguf"]  # type: ignore[attr-defined]


def test_nothing_found_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [p for p in sys.path if "site-packages" not in p])
    done = specli("models", "--dir", "/nowhere/at/all")
    assert done.returncode == 1 and "no such directory" in done.stderr


def test_default_is_kept_by_its_absolute_path(tiny_draft: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tiny_draft.parent)
    assert specli("models", "default", "tiny-draft.gguf").returncode == 0
    assert specli("models", "default").stdout.strip() == str(tiny_draft)
    done = specli("models", "default", "nothing.gguf")
    assert done.returncode == 1 and "no such file" in done.stderr
    assert specli("models", "default").stdout.strip() == str(tiny_draft)
    assert specli("models", "default", "--clear").returncode == 0
    assert str(tiny_draft) not in specli("models", "default").stdout


def test_what_is_no_model_does_not_become_the_default(tiny_draft: Path, tmp_path: Path) -> None:
    text = tmp_path / "README.md"
    text.write_text("# no model\n")
    done = specli("models", "default", text)
    assert done.returncode == 1 and str(text) in done.stderr
    assert not config_path().exists()


def test_the_default_model_is_listed_and_marked_wherever_it_lies(tiny_draft: Path, tmp_path: Path) -> None:
    place = tmp_path / "far" / "mine.gguf"
    place.parent.mkdir()
    place.write_bytes(tiny_draft.read_bytes())
    assert specli("models", "default", place).returncode == 0
    rows = listed("--dir", tiny_draft.parent)
    assert rows["mine"]["path"] == str(place)
    assert [name for name, row in rows.items() if row["default"]] == ["mine"]
    marked = [line for line in specli("models").stdout.splitlines() if line.endswith("(default)")]
    assert len(marked) == 1 and marked[0].split()[0] == "mine"
    place.unlink()
    assert "mine" not in listed("--dir", tiny_draft.parent)


# -- the offer -------------------------------------------------------------------------------------


def family(place: Path) -> tuple[Path, Path]:
    place.mkdir(parents=True)
    config_path().parent.mkdir(exist_ok=True)
    config_path().write_text(f'[models]\ndirs = ["{place}"]\n')
    more = {"general.basename": "made"}
    target = Made(words(320), width=128, layers=4, more=more).write(place / "target.gguf")
    return target, Made(words(320), more=more).write(place / "draft.gguf")


def test_a_fitting_draft_is_offered_once(tmp_path: Path) -> None:
    target, draft = family(tmp_path / "mine")
    said = shelf.offer_draft(target)
    assert said is not None and said.startswith("draft.gguf could draft for target.gguf:")
    assert f"specli check-draft {target} {draft} --measure" in said
    assert shelf.offer_draft(target) is None
    assert shelf.offer_draft(draft) is None  # nothing smaller


def test_the_offer_tells_what_was_measured(tmp_path: Path) -> None:
    target, draft = family(tmp_path / "mine")
    figures = measure(target, draft)
    assert recalled(target, draft) == figures
    said = shelf.offer_draft(target)
    assert said is not None
    assert ("times plain speed expected" in said) is figures.pays and (
        "cannot pay" in said
    ) is not figures.pays


def test_a_draft_is_used_unasked_only_where_the_config_says_so(tmp_path: Path) -> None:
    target, draft = family(tmp_path / "mine")
    said: list[str] = []
    assert shelf.unasked_draft(target, said.append) is None and len(said) == 1
    config_path().write_text(config_path().read_text() + "auto-draft = true\n")
    assert shelf.unasked_draft(target, said.append) == draft
    assert len(said) == 2 and "auto-draft" in said[1]


def test_run_offers_once_and_quietly_never(tmp_path: Path) -> None:
    target, _ = family(tmp_path / "mine")
    arguments = ("run", "-m", target, "--no-stdin", "--raw", "-p", "tok1", "-n", 2)
    assert "could draft for" not in specli(*arguments, "--quiet").stderr
    first, second = specli(*arguments), specli(*arguments)
    assert first.returncode == 0 and first.stderr.count("could draft for") == 1
    assert "could draft for" not in second.stderr


def test_another_family_is_not_offered(tmp_path: Path) -> None:
    target, draft = family(tmp_path / "mine")
    Made(words(320), more={"general.basename": "stranger"}).write(draft)
    assert shelf.offer_draft(target) is None


# -- what the figures mean -------------------------------------------------------------------------


def figures(rate: float, draft_s: float, widths: tuple[float, ...]) -> PairFigures:
    tested, accepted = (1000,) * 8, (int(1000 * rate),) * 8
    return PairFigures(tested, accepted, widths, draft_s, 0.0, 1000, 0.0)


def test_expected_speed_is_that_of_the_paper() -> None:
    """Leviathan et al. 2023, theorem 3.8: (1 - a^(g+1)) / ((1 - a)(g c + 1)) where a verify costs as one."""
    found = figures(0.8, 0.1, (1.0,) * 9)
    for length in range(1, 9):
        expected = (1 - 0.8 ** (length + 1)) / ((1 - 0.8) * (0.1 * length + 1))
        assert found.speedup_at(length) == pytest.approx(expected)
    assert found.cost_ratio == pytest.approx(0.1) and found.pays
    assert found.best_length == max(range(1, 9), key=found.speedup_at)


def test_a_draft_that_costs_half_a_token_cannot_pay_where_verifying_is_dear() -> None:
    found = figures(0.8, 0.5, (1.0, 1.35, 1.68, 2.09, 2.41, 2.7, 3.0, 3.27, 3.3))
    assert not found.pays and found.best_length == 1
    assert found.speedup == pytest.approx(1.8 / 1.85)
    assert found.break_even == pytest.approx(0.85, abs=0.001)


def test_break_even_is_where_the_speed_is_one() -> None:
    found = figures(0.3, 0.2, (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8))
    assert found.break_even is not None
    assert figures(found.break_even + 0.01, 0.2, found.widths).pays
    assert not figures(found.break_even - 0.01, 0.2, found.widths).pays
    assert figures(0.99, 2.0, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0)).break_even is None


def test_measuring_finds_a_draft_that_always_agrees(tiny_draft: Path) -> None:
    found = measure(tiny_draft, tiny_draft)
    assert found.acceptance > 0.9  # rows of a wider decode differ in the last bits
    assert len(found.widths) == 9 and list(found.widths) == sorted(found.widths)
    assert found.tested[0] >= found.tested[-1] > 0


@pytest.mark.large
def test_the_fetched_folder_proposes_the_small_qwen_for_the_large(
    qwen_target: Path, qwen_draft: Path
) -> None:
    config_path().parent.mkdir(exist_ok=True)
    config_path().write_text(f'[models]\ndirs = ["{qwen_target.parent}"]\n')
    rows = listed()
    drafts = {name: [Path(str(d)).name for d in row["drafts"]] for name, row in rows.items()}  # type: ignore[attr-defined]
    assert drafts[qwen_target.stem] == [qwen_draft.name]
    assert all(not found for name, found in drafts.items() if name != qwen_target.stem)


def test_a_folder_or_file_that_cannot_be_looked_at_breaks_nothing(tmp_path: Path, tiny_draft: Path) -> None:
    loops = tmp_path / "loops"
    loops.mkdir()
    (loops / "loop.gguf").symlink_to("loop.gguf")
    (loops / "good.gguf").symlink_to(tiny_draft)
    place = config_path()
    place.parent.mkdir(parents=True, exist_ok=True)
    for dirs in (str(loops), "~nosuchuser/x", "n" * 300):
        place.write_text(f'[models]\ndirs = ["{dirs}"]\n')
        done = specli("models", "--json")
        assert done.returncode == 0, done.stderr
        assert dirs != str(loops) or "good.gguf" in done.stdout
    for args in (("models", "--dir", loops), ("check-draft", tiny_draft, "--scan", "--scan-dir", loops)):
        done = specli(*args)
        assert done.returncode in (0, 3) and not done.stderr  # 3: nothing fits
    for args in (("models", "~nosuchuser"), ("models", "n" * 300), ("profiles", "show", "~nosuchuser/x"),
                 ("models", "--dir", "n" * 300), ("models", "default", "~nosuchuser/x.gguf")):  # fmt: skip
        done = specli(*args)
        assert done.returncode in (1, 2) and "unexpected" not in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "text",
    [
        'models.default = "x"\n',
        'models = {default = "x"}\n',
        '[models]\n"default" = "x"\n',
        '["models"]\ndefault = "x"\n',
    ],
)
def test_a_default_that_cannot_be_edited_is_said(tiny_draft: Path, text: str) -> None:
    place = config_path()
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    for args in (("--clear",), (tiny_draft,)):
        done = specli("models", "default", *args)
        assert done.returncode == 1 and "change it by hand" in done.stderr
        assert place.read_text() == text
