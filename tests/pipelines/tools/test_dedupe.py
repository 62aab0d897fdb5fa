"""Duplicates by files of scores: what is kept, what is refused, and where."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from dali_run.cli import main as cli
from dali_run.ops.errors import DaliRunError, JobError, SpecError
from dali_run.pipelines.tools.dedupe import clusters_page, deduplicate, score_files
from dali_run.pipelines.tools.dedupe.deduplicate import DedupeOptions, write_keys
from tests.kit.long import long_only
from tests.kit.pages import Page

NEAR = 0x0123456789ABCDEF
ROWS = {
    "key": ["b", "a", "e", "d", "c", "f", "ü"],
    "content_hash": [1, 2, 3, 2, 5, 6, 7],
    "phash": [NEAR, 0, NEAR ^ 0x8001, (1 << 64) - 1, NEAR ^ 0x8003, NEAR ^ 0xFF0000, 1 << 63],
    "sharpness": [1.0, 2.0, 5.0, 3.0, None, 9.0, 0.5],
}
"""a and d have the same content. b, e and c are near: c is 3 bits from b, 1 from e; f is 8 bits from b; ü is 1 bit
from a."""
TYPES = {"key": pa.string(), "content_hash": pa.uint64(), "phash": pa.uint64(), "sharpness": pa.float32()}


def table(rows: dict[str, list[Any]] = ROWS) -> Any:
    return pa.table({k: pa.array(v, TYPES.get(k)) for k, v in rows.items()})


def parquet(path: Path, rows: Any = None, **options: Any) -> str:
    pq.write_table(table() if rows is None else rows, path, **options)
    return str(path)


def kept(paths: list[str], out: Path, **options: Any) -> list[str]:
    found = deduplicate.deduplicate(paths, DedupeOptions(**options))
    write_keys(found, out)
    return out.read_text().splitlines()


def jsonl(path: Path, rows: dict[str, list[Any]] = ROWS, signed: bool = False) -> str:
    def value(v: Any) -> Any:
        return v - (1 << 64) if signed and isinstance(v, int) and v >> 63 else v

    lines = [{k: value(v) for k, v in zip(rows, row, strict=True)} for row in zip(*rows.values(), strict=True)]
    path.write_text("".join(json.dumps({**line, "more": [1, {}]}) + "\n" for line in lines))
    return str(path)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["b", "a", "f"]), ({"distance": 2}, ["b", "a", "f"]), ({"distance": 1}, ["b", "a", "c", "f"]),
        ({"distance": 0}, ["b", "a", "e", "c", "f", "ü"]), ({"distance": 8}, ["a", "b"]),
        ({"exact": "content_hash"}, ["b", "a", "e", "c", "f", "ü"]),
        ({"near": "phash"}, ["b", "a", "d", "f"]), ({"best": "sharpness"}, ["e", "d", "f"]),
        ({"exact": "phash"}, ["b", "a", "e", "d", "c", "f", "ü"]),
    ],
)  # fmt: skip
def test_one_of_each_cluster_is_kept(options: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    """In the order of rows; the one whose key sorts first, or has the largest number."""
    expected = sorted(expected, key=ROWS["key"].index)
    assert kept([parquet(tmp_path / "s.parquet")], tmp_path / "k.txt", **options) == expected


def test_parts_and_order_do_not_matter(tmp_path: Path) -> None:
    """Ties of the largest number, too, are decided by keys."""
    random = np.random.default_rng(2)
    n = 300
    base = random.integers(0, 1 << 64, n // 3, dtype=np.uint64)
    whole = pa.table({
        "key": [f"k{i:03d}" for i in random.permutation(n)],
        "phash": base[random.integers(0, len(base), n)] ^ (np.uint64(1) << random.integers(0, 9, n).astype(np.uint64)),
        "content_hash": random.integers(0, 250, n).astype(np.uint64), "score": random.integers(0, 4, n),
    })  # fmt: skip
    for best in (None, "score"):
        want: set[str] | None = None
        for cuts in ([0, n], [0, 1, 100, n], [0, 150, 150, n]):
            mixed = whole.take(pa.array(random.permutation(n)))
            paths = [
                parquet(tmp_path / f"{best}-{len(cuts)}-{k}.parquet", mixed.slice(a, b - a), row_group_size=7)
                for k, (a, b) in enumerate(itertools.pairwise(cuts))
            ]
            got = set(kept(paths, tmp_path / "k.txt", best=best))
            assert want is None or got == want
            want = got
        assert want is not None
        assert 10 < len(want) < 100


@pytest.mark.parametrize("of", ["parquet", "signed", "dictionary", "jsonl", "signed jsonl", "folder"])
def test_kinds_of_files(of: str, tmp_path: Path) -> None:
    rows = table()
    if of == "signed":
        bits = [int(np.uint64(v).view(np.int64)) for v in ROWS["phash"]]
        rows = rows.set_column(2, "phash", pa.array(bits, pa.int64()))
    elif of == "dictionary":
        rows = rows.set_column(0, "key", rows.column("key").dictionary_encode())
    path = tmp_path / "scores"
    path.mkdir()
    (path / "notes.md").write_text("-")
    if "jsonl" in of:
        made = jsonl(path / "s.jsonl", signed=of.startswith("signed"))
    else:
        made = parquet(path / "s.parquet", rows)
    assert kept([str(path) if of == "folder" else made], tmp_path / "k.txt") == ["b", "a", "f"]


def test_a_npy_file_and_its_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_files, "_BLOCK_ROWS", 3)
    np.save(tmp_path / "h.npy", np.array(ROWS["phash"], np.uint64))
    (tmp_path / "keys.txt").write_text("\n".join(ROWS["key"]) + "\n")
    given = [str(tmp_path / "h.npy")]
    assert kept(given, tmp_path / "k.txt", keys=str(tmp_path / "keys.txt")) == ["b", "a", "d", "f"]
    assert kept(given, tmp_path / "k.txt") == ["0", "1", "3", "5"]
    for text, said in (("a\nb\n", "fewer lines"), ("\n".join("abcdefghi"), "more lines")):
        (tmp_path / "keys.txt").write_text(text)
        with pytest.raises(JobError, match=rf"keys.txt has {said} than .*h.npy has hashes \(7\)"):
            kept(given, tmp_path / "k.txt", keys=str(tmp_path / "keys.txt"))


def test_many_blocks_and_few_rows_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best rows so far are what blocks before one come to."""
    monkeypatch.setattr(score_files, "_BLOCK_ROWS", 1)
    monkeypatch.setattr(deduplicate, "_PENDING", 1)
    monkeypatch.setattr(deduplicate, "_CLUSTERS", 1)
    path = parquet(tmp_path / "s.parquet", row_group_size=1)
    assert kept([path], tmp_path / "k.txt") == ["b", "a", "f"]
    assert kept([path], tmp_path / "k.txt", best="sharpness") == ["e", "d", "f"]


def damaged(path: Path) -> str:
    """The second row group does not unpack to what its checksum says."""
    parquet(path, row_group_size=3, compression="none", write_page_checksum=True, use_dictionary=False)
    column = pq.read_metadata(path).row_group(1).column(2)
    data = bytearray(path.read_bytes())
    data[column.data_page_offset + column.total_compressed_size - 1] ^= 1
    path.write_bytes(data)
    return str(path)


def without(name: str, value: Any) -> Any:
    return table({**ROWS, name: [*ROWS[name][:4], value, *ROWS[name][5:]]})


REFUSED: dict[str, tuple[Callable[[Path], str], dict[str, Any], type[DaliRunError], str]] = {
    "missing column": (parquet, {"near": "phas"}, SpecError, r"x: there is no column 'phas'; did you mean phash\?"),
    "no hash": (lambda p: parquet(p, table().select(["key"])), {}, SpecError, "no column 'content_hash' or 'phash'"),
    "wrong dtype": (parquet, {"near": "sharpness"}, JobError,
                    r"x: column 'sharpness' is float; it must hold integers of 64 bits \(uint64 or int64\)"),
    "wrong key": (parquet, {"key": "sharpness"}, JobError, "'sharpness' is float; it must hold texts"),
    "wrong number": (parquet, {"best": "key"}, JobError, "'key' is string; it must hold numbers"),
    "no value": (lambda p: parquet(p, without("phash", None)), {}, JobError, "x: row 5 has no 'phash'; every"),
    "keys twice": (lambda p: parquet(p, without("key", "a")), {}, JobError,
                   "x: row 5: the key 'a' is that of .*x: row 2, too; keys must be unique"),
    "row group": (damaged, {}, JobError, "x: row group 1 cannot be read: .*checksum"),
    "footer": (lambda p: str(p.write_bytes(b"PAR1....PAR1")) and str(p), {}, JobError, "x: its footer cannot be read"),
    "distance": (parquet, {"distance": 33}, SpecError, "--distance must be 0 to 32 bits, got 33"),
    "keys of parquet": (parquet, {"keys": "k.txt"}, SpecError, r"--keys is for .npy files"),
}  # fmt: skip


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_is_refused_of_parquet(case: str, tmp_path: Path) -> None:
    make, options, kind, said = REFUSED[case]
    path = make(tmp_path / "s.parquet")
    with pytest.raises(kind, match=said.replace("x:", r"s\.parquet:")):
        kept([path], tmp_path / "k.txt", **options)
    assert not list(tmp_path.glob("*k.txt*"))


@pytest.mark.parametrize(
    ("line", "said"),
    [('{"key": "z"', "is not JSON"), ("[1]", "holds list; each line must be an object"),
     ('{"key": "z", "phash": "ff"}', "'phash' is \"ff\"; it must hold integers of 64 bits"),
     ('{"key": "z", "phash": 1.5}', "'phash' is 1.5"),
     ('{"key": 3, "phash": 4}', "'key' is 3; it must hold texts"), ('{"key": "z"}', "has no 'phash'"),
     ('{"key": "z", "phash": 18446744073709551616}', "'phash' is 18446744073709551616"),
     ('{"key": "z", "phash": ' + "[" * 100_000, "is not JSON: it is nested too deeply"),
     ('{"key": "z", "phash": ' + "[" * 600 + "]" * 600 + "}", "'phash' is a list; it must hold integers")],
)  # fmt: skip
def test_what_is_refused_of_json(line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it stands in the lines that are looked at first or not."""
    path = tmp_path / "s.jsonl"
    path.write_text('{"key": "y", "phash": 1}\n' + line + "\n")
    for looked_at in (1000, 1):
        monkeypatch.setattr(score_files, "_TYPED", looked_at)
        with pytest.raises(JobError, match=r"s\.jsonl:( line )?2:? ") as caught:
            kept([str(path)], tmp_path / "k.txt")
        assert said in str(caught.value)


LARGE = 1 << 53


@pytest.mark.parametrize(("values", "typed"), [
    ([LARGE, LARGE + 1, LARGE - 1], "int64"), ([-LARGE - 2, -LARGE - 1, -LARGE - 3], "int64"),
    ([(1 << 64) - 2, (1 << 64) - 1, 5], "uint64"), ([-(1 << 63) + 1, (1 << 63) - 1, (1 << 63) - 2], "int64"),
    ([-3, 7, None], "int8"), ([0.25, 0.5, float("nan")], "float32"), ([False, True, None], "bool"),
])  # fmt: skip
def test_the_best_of_numbers_of_any_type(values: list[Any], typed: str, tmp_path: Path) -> None:
    """The second is the largest; float64 would round large integers to equal ones, and the first key would be kept."""
    rows = {"key": ["a", "b", "c"], "content_hash": [4, 4, 4], "best": values}
    split = [{k: v[i : i + 1] for k, v in rows.items()} for i in range(3)]
    typed_table = {k: pa.array(v, typed if k == "best" else TYPES.get(k)) for k, v in rows.items()}
    paths = [parquet(tmp_path / "s.parquet", pa.table(typed_table))]
    assert kept(paths, tmp_path / "k.txt", best="best") == ["b"]
    if typed == "uint64" or any(v != v for v in values):
        return  # JSON's integers are signed, and it has no NaN
    assert kept([jsonl(tmp_path / "s.jsonl", rows)], tmp_path / "k.txt", best="best") == ["b"]
    paths = [jsonl(tmp_path / f"{i}.jsonl", row) for i, row in enumerate(split)]
    assert kept(paths, tmp_path / "k.txt", best="best") == ["b"]


def test_numbers_of_another_type_further_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(score_files, "_TYPED", 1)
    monkeypatch.setattr(score_files, "_BLOCK_BYTES", 256)
    rows = {"key": [f"{i:02}" for i in range(40)], "content_hash": [4] * 40, "best": [*range(38), 38.5, 3]}
    path = jsonl(tmp_path / "s.jsonl", rows)
    assert kept([path], tmp_path / "k.txt", best="best") == ["38"]
    rows["best"][39] = True
    with pytest.raises(JobError, match=r"s\.jsonl:40: 'best' is true; it must hold numbers"):
        kept([jsonl(tmp_path / "s.jsonl", rows)], tmp_path / "k.txt", best="best")


@pytest.mark.parametrize("last", ["content_hash", "phash"])
def test_a_column_that_only_some_files_have_is_refused(last: str, tmp_path: Path) -> None:
    """Else the order of the files would decide what counts as a duplicate."""
    few = {k: v for k, v in ROWS.items() if k != last}
    for names in ([few, ROWS], [ROWS, few]):
        paths = [jsonl(tmp_path / f"{i}.jsonl", rows) for i, rows in enumerate(names)]
        with pytest.raises(SpecError, match=rf"jsonl has no column '{last}', which .*jsonl has; name the columns"):
            kept(paths, tmp_path / "k.txt")


def test_a_late_sign_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of signed hashes are negative: among the lines that are looked at first there is one."""
    monkeypatch.setattr(score_files, "_TYPED", 1)
    (tmp_path / "s.jsonl").write_text('{"key": "y", "phash": 1}\n{"key": "z", "phash": -4}\n')
    with pytest.raises(JobError, match=r"s\.jsonl:2: 'phash' is -4; it must hold integers of 64 bits"):
        kept([str(tmp_path / "s.jsonl")], tmp_path / "k.txt")


def test_what_is_refused_of_paths(tmp_path: Path) -> None:
    one, two = parquet(tmp_path / "a.parquet"), jsonl(tmp_path / "b.jsonl")
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "f.npy", np.zeros((3, 2), np.uint64))
    for paths, said in (
        ([one, two], "scores are JSON Lines and Parquet; give files of one kind"), ([one, one], "is named twice"),
        ([str(tmp_path / "empty")], "has no files of scores"), ([str(tmp_path / "c.parquet")], "there is no file"),
        ([__file__], "is not a file of scores"), ([str(tmp_path / "f.npy")], r"holds uint64 of shape \[3, 2\]"),
        ([str(tmp_path / "f.npy")] * 2, "named twice"),
    ):  # fmt: skip
        with pytest.raises(DaliRunError, match=said):
            kept(paths, tmp_path / "k.txt")


def test_a_key_of_two_lines_goes_to_parquet(tmp_path: Path) -> None:
    path = parquet(tmp_path / "s.parquet", table({"key": ["a\nb", "c"], "phash": [0, 255]}))
    with pytest.raises(JobError, match=r"'a\\nb' has more than one line; write .parquet"):
        kept([path], tmp_path / "k.txt")
    write_keys(deduplicate.deduplicate([path], DedupeOptions()), tmp_path / "k.parquet")
    assert pq.read_table(tmp_path / "k.parquet").to_pydict() == {"key": ["a\nb", "c"]}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["k.parquet", "s.parquet"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Keys, numbers as JSON, and a page with thumbnails of the files that keys name, inside of the folder alone."""
    (tmp_path / "images").mkdir()
    for name in ("b", "e"):
        Image.new("RGB", (20, 10), (200, 0, 0)).save(tmp_path / "images" / name, "PNG")
    Image.new("RGB", (20, 10)).save(tmp_path / "secret.png")
    rows = {**ROWS, "key": ["b", "../secret.png", "e", "<d>", *ROWS["key"][4:]]}
    path, out, html = parquet(tmp_path / "s.parquet", table(rows)), tmp_path / "k.txt", tmp_path / "c.html"
    given = ["dedupe", path, "--out", str(out), "--html", str(html), "--images", str(tmp_path / "images")]
    assert cli.main(given) == 0
    assert "3 of 7 keys; 4 duplicates are left out (1 exact, 3 near) in 2 clusters, the largest of 3 rows" in (
        " ".join(capsys.readouterr().out.split())
    )
    assert out.read_text().splitlines() == ["b", "../secret.png", "f"]
    page = Page(html.read_text())
    cells = page.texts[page.texts.index("../secret.png") :]
    cells = cells[: cells.index("This page")]
    assert [t for t in cells if t in ("kept", "left out") or t in rows["key"]] == [
        "../secret.png", "kept", "<d>", "left out", "ü", "left out", "b", "kept", "c", "left out", "e", "left out",
    ]  # fmt: skip
    assert [t for t in cells if t.isdecimal()] == ["0", "64", "1", "0", "3", "2"]
    assert sorted(i["alt"] for i in page.named("img")) == ["b", "e"]
    assert cli.main([*given[:4], "--json", "--exact", "content_hash"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "out": str(out), "rows": 7, "kept": 6, "exact": 1, "near": 0, "clusters": 1, "largest": 2, "distance": None,
    }  # fmt: skip
    assert cli.main(["dedupe", path, "--out", str(tmp_path / "k.csv")]) == 2


def test_the_page_shows_the_largest_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clusters_page, "CLUSTERS", 2)
    monkeypatch.setattr(clusters_page, "MEMBERS", 3)
    groups = [1, 2, 2, 5, 3, 2]
    rows = {"key": [f"{g}{i}" for g, n in enumerate(groups) for i in range(n)],
            "phash": [g << (8 * g) for g, n in enumerate(groups) for i in range(n)]}  # fmt: skip
    found = deduplicate.deduplicate([parquet(tmp_path / "s.parquet", table(rows))], DedupeOptions(distance=0))
    shown = clusters_page.members_of(found, clusters_page.largest(found))
    assert [[m.key for m in members] for members in shown] == [["30", "31", "32"], ["40", "41", "42"]]
    assert "5 rows, of which 3 are shown" in (page := clusters_page.clusters_page(found, None, ["x"]))
    assert "The 2 largest of 5 clusters" in page


MANY = """
import resource, sys
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from pathlib import Path
from dali_run.pipelines.tools.dedupe.deduplicate import DedupeOptions, deduplicate, write_keys

path, n = sys.argv[1], int(sys.argv[2])
random = np.random.default_rng(0)
pairs = random.integers(0, 1 << 64, n // 2, dtype=np.uint64)
for part in range(4):  # row i and row i + n // 2 differ in one bit
    i = np.arange(part * n // 4, (part + 1) * n // 4)
    turned = np.where(i < n // 2, np.uint64(0), np.uint64(1) << (i % 64).astype(np.uint64))
    keys = pa.array(i).cast(pa.string())
    table = pa.table({"key": keys, "phash": pairs[i % (n // 2)] ^ turned, "content_hash": i.astype(np.uint64)})
    pq.write_table(table, f"{path}/{part}.parquet", row_group_size=1 << 16)
del pairs, table, keys, i, turned
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
found = deduplicate([path], DedupeOptions(distance=3))
write_keys(found, Path(path, "k.txt"))
assert found.summary() == {"rows": n, "kept": n // 2, "exact": 0, "near": n // 2, "clusters": n // 2, "largest": 2,
                           "distance": 3}
print(before, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@long_only
def test_a_row_costs_28_bytes_while_hashes_are_compared(tmp_path: Path) -> None:
    """And the keys of clusters no more than four million of them take."""
    peaks = []
    for n in (1_000_000, 16_000_000):
        (tmp_path / str(n)).mkdir()
        command = [sys.executable, "-c", MANY, str(tmp_path / str(n)), str(n)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[1]))
    assert peaks[1] < 1024 * 1024 + 28 * 16_000_000 // 1024, f"peaks in KiB: {peaks}"
