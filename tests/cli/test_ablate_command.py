"""ablate on the shipped model: tables and figures, answers that are used again, and what is refused."""

import csv
import json

import pytest
from column_docs import explained


def rows(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


ABLATE = ("ablate", "--task", "docqa", "--samples", "3", "-b", "40", "-o", "r", "--width", "single", "--only")


@pytest.fixture
def asked(monkeypatch):
    """What the model is asked: samples with the methods of their arms; a sample named in `broken` fails."""
    from ecokv_cli.errors import ModelError
    from ecokv_cli.studies import evaluate

    real = evaluate.answer

    class Asked(list):
        broken = ()

    found = Asked()

    def recording(loaded, question, settings):
        found.append((question.id, [arm.method.name for arm in settings.arms]))
        if question.id in found.broken:
            raise ModelError("stopped")
        return real(loaded, question, settings)

    monkeypatch.setattr(evaluate, "answer", recording)
    return found


def test_the_2_x_2_is_decoded_drawn_and_told(ecokv, tmp_path, asked):
    status, out, err = ecokv(*ABLATE, "factorial", "--json")
    assert status == 0, err
    # One prefill per sample for all arms.
    assert asked == [(f"page-000{i}", ["full", "snapkv", "snapkv+ecokv[window=32]", "snapkv[window=4]", "snapkv+ecokv"])
                     for i in range(3)]  # fmt: skip
    folder = tmp_path / "r" / "ablation"
    answers = rows(folder / "answers.csv")
    assert len(answers) == 3 * 5
    assert {float(row["kept"]) for row in answers if row["budget"]} == {40}
    means = {row["method"]: float(row["mean"]) for row in rows(folder / "factorial.csv")}
    for method, mean in means.items():
        assert mean == pytest.approx(sum(float(row["score"]) for row in answers if row["method"] == method) / 3)
    effects = {row["effect"]: row for row in json.loads(out)["results"]["factorial_effects"]}
    assert effects["window_plain"]["difference"] == pytest.approx(means["snapkv[window=4]"] - means["snapkv"])
    assert effects["interaction"]["n"] == 3
    for name in ("factorial.tex", "factorial_effects.md", "full_cache.csv", "figures/ablation_factorial.pdf",
                 "figures/ablation_factorial.png", "figures/ablation_factorial.csv"):  # fmt: skip
        assert (folder / name).stat().st_size
    assert {path.name for path in (tmp_path / "r").iterdir()} == {"ablation"}
    for path in folder.glob("*.csv"):
        told = explained("evaluate" if path.stem == "answers" else "ablate", path.name)
        assert set(rows(path)[0]) <= told, path.name

    status, _, err = ecokv(*ABLATE, "factorial")
    assert status == 2
    assert "add --force" in err

    # More experiments decode nothing but the arms that are new, and change nothing that was there.
    asked.clear()
    status, out, err = ecokv(*ABLATE, "factorial,averaging", "--force")
    assert status == 0, err
    assert "15 of 18 answers were there already" in err
    assert asked == [(f"page-000{i}", ["snapkv+ecokv[avg_domain=candidates]"]) for i in range(3)]
    again = rows(folder / "answers.csv")
    assert [row for row in again if "avg_domain" not in row["method"]] == answers
    assert "averaging, exact" in out
    assert {path.stem for path in (folder / "figures").glob("*.pdf")} == {"ablation_factorial", "ablation_averaging"}
    alike = {tuple(row["score"] for row in again if row["method"] == method)
             for method in ("snapkv+ecokv", "snapkv+ecokv[avg_domain=candidates]")}  # fmt: skip
    assert ("arms of averaging score alike on every sample (n = 3" in err) == (len(alike) == 1)


def test_an_interrupted_ablation_goes_on_where_it_was(ecokv, tmp_path, asked):
    asked.broken = ("page-0001",)
    status, _, err = ecokv(*ABLATE, "averaging")
    assert status == 1
    assert "stopped" in err
    asked.broken = ()
    status, _, err = ecokv(*ABLATE, "averaging")
    assert status == 0, err
    assert "1 of 3 samples were there already" in err
    assert [sample for sample, _ in asked] == ["page-0000", "page-0001", "page-0001", "page-0002"]
    assert {row["n"] for row in rows(tmp_path / "r" / "ablation" / "averaging.csv")} == {"3"}


def test_a_failing_sample_is_left_out_of_every_arm_and_tried_again(ecokv, tmp_path, asked):
    asked.broken = ("page-0001",)
    status, _, err = ecokv(*ABLATE, "averaging", "--keep-going")
    assert status == 1
    assert "1 samples failed and are left out: page-0001" in err
    table = tmp_path / "r" / "ablation" / "averaging.csv"
    assert {row["n"] for row in rows(table)} == {"2"}
    asked.broken = ()
    asked.clear()
    status, _, err = ecokv(*ABLATE, "averaging", "--force")
    assert status == 0, err
    assert [sample for sample, _ in asked] == ["page-0001"]
    assert {row["n"] for row in rows(table)} == {"3"}


def test_a_budget_below_a_window_leaves_out_what_needs_the_window_alone(ecokv, tmp_path, asked):
    status, _, err = ecokv("ablate", "--task", "docqa", "--samples", "2", "-b", "12", "-o", "r", "--width", "single",
                           "--only", "factorial,grid", "--alpha", "0.8", "--beta", "0,0.6")  # fmt: skip
    assert status == 0, err
    assert "factorial at budget 12 is left out: snapkv: budget 12 is smaller than its window of 32" in err
    assert asked[0] == ("page-0000", ["full", "snapkv+ecokv[beta=0.0]", "snapkv+ecokv"])
    assert not (tmp_path / "r" / "ablation" / "factorial.csv").exists()
    assert len(rows(tmp_path / "r" / "ablation" / "grid.csv")) == 2


@pytest.mark.parametrize(("arguments", "message"), [
    ((), "give --task docqa or --manifest FILE"),
    (("--task", "docqa", "--only", "factoral"), "did you mean factorial"),
    (("--task", "docqa", "--window", "4"), "two different windows"),
    (("--task", "docqa", "--alpha", "0,x"), "--alpha '0,x': write numbers"),
    (("--task", "docqa", "--beta", "0,nan"), "must be finite"),
    (("--task", "docqa", "--alpha", "2"), "outside 0..1"),
    (("--task", "docqa", "--only", "factorial", "-b", "16"), "smaller than its window"),
    (("--task", "docqa", "--host", "keydiff"), "no attention scores to boost"),
    (("--task", "docqa", "--booster", "mixkv", "--only", "std"), "use --booster ecokv"),
    (("--task", "docqa", "--booster", "ecokv[window=8]"), "give --window instead"),
    (("--task", "docqa", "--width", "9000"), "figure width"),
])  # fmt: skip
def test_ablate_refuses_before_the_model_is_loaded(ecokv, tmp_path, arguments, message):
    status, _, err = ecokv("ablate", *arguments)
    assert status == 2
    assert message in err
    assert not list(tmp_path.iterdir())
