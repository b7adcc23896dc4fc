"""Plans as files: mapped as they were, and refused when they are damaged, foreign or of a later version."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan.file import ARRAYS_NAME, HEADER_NAME
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
from zephon_core.errors import ArtifactError, CorruptArtifactError, MissingArtifactError, SpecError, StateError
from zephon_core.fingerprint import canonical_json

LENGTHS = (np.arange(500) * 7919 % 97 + 3).astype(np.int32)


def plan_of(**settings) -> GlobalBatchPlan:
    options = TokenBatchOptions(maximum_tokens=400, layout="padded")
    return GlobalBatchPlan.build(LENGTHS, options, **{"world_size": 3, "bucket_width": 4} | settings)


@pytest.fixture
def folder(tmp_path):
    plan_of().save(tmp_path / "plan")
    return tmp_path / "plan"


def reheaded(folder, **changes) -> None:
    """Change the header and make its checksum right again."""
    header = json.loads((folder / HEADER_NAME).read_bytes()) | changes
    header.pop("sha256")
    header["sha256"] = hashlib.sha256(canonical_json(header)).hexdigest()
    (folder / HEADER_NAME).write_text(json.dumps(header))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("settings", [{}, {"world_size": 1}, {"world_size": 9, "bucket_width": 0, "seed": None}])
def test_opens_as_it_was(tmp_path, settings, verify):
    plan = plan_of(**settings).reshard(1, 2, skipped=[0, 3])
    plan.save(tmp_path / "a" / "plan")
    opened = GlobalBatchPlan.open(tmp_path / "a" / "plan", verify=verify)
    assert opened.digest == plan.digest
    assert opened.statistics == plan.statistics
    for mine, its in zip(plan.arrays, opened.arrays, strict=True):
        assert mine.dtype == its.dtype
        assert np.array_equal(mine, its)
        assert not its.flags.writeable
    assert all(opened.batch(step, rank) == plan.batch(step, rank) for step in range(plan.steps) for rank in range(plan.world_size))


def test_a_plan_without_steps(tmp_path):
    plan = GlobalBatchPlan.build([], TokenBatchOptions(maximum_tokens=5), world_size=2)
    plan.save(tmp_path)
    assert GlobalBatchPlan.open(tmp_path).steps == 0


def test_it_is_a_plain_arrow_table(folder):
    plan = plan_of()
    table = pa.ipc.open_file(pa.memory_map(str(folder / ARRAYS_NAME))).read_all()
    assert [str(field.type) for field in table.schema] == ["int64", "int32", "int64", "int64", "int64", "large_list<item: uint32>"]
    assert not any(field.nullable for field in table.schema)
    for row in table.to_pylist():
        batch = plan.batch(row["step"], row["rank"])
        assert row["examples"] == batch.indices.tolist()
        assert (row["real_tokens"], row["maximum_sequence_length"], row["token_slots"]) == (
            batch.real_tokens,
            batch.maximum_sequence_length,
            batch.token_slots,
        )


def test_the_same_plan_gives_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        plan_of().save(tmp_path / name)
    plan_of(seed=5).save(tmp_path / "two")
    plan_of().save(tmp_path / "two")  # over another plan
    for file in (ARRAYS_NAME, HEADER_NAME):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert sorted(path.name for path in (tmp_path / "two").iterdir()) == [ARRAYS_NAME, HEADER_NAME]


def test_an_opened_plan_reshards_with_its_lengths_only(folder):
    plan = plan_of()
    with pytest.raises(SpecError, match="lengths="):
        GlobalBatchPlan.open(folder).reshard(1, 2)
    with pytest.raises(StateError, match=r"source\.lengths_sha256"):
        GlobalBatchPlan.open(folder, lengths=LENGTHS + 1)
    again, expected = GlobalBatchPlan.open(folder, lengths=LENGTHS).reshard(1, 2), plan.reshard(1, 2)
    assert again.digest == expected.digest
    assert np.array_equal(again.arrays.examples, expected.arrays.examples)


def test_every_damaged_byte_is_found(folder):
    """Of plan.arrow, one flipped at a time in every 16 bytes; of plan.json, every one."""
    for name, stride in ((ARRAYS_NAME, 16), (HEADER_NAME, 1)):
        content = (folder / name).read_bytes()
        for place in range(0, len(content), stride):
            damaged = bytearray(content)
            damaged[place] ^= 0x04
            if name == HEADER_NAME and bytes(damaged).split() == content.split():
                continue
            (folder / name).write_bytes(bytes(damaged))
            with pytest.raises(ArtifactError):
                GlobalBatchPlan.open(folder)
        (folder / name).write_bytes(content)
    GlobalBatchPlan.open(folder)


def test_every_cut_is_found(folder):
    for name in (ARRAYS_NAME, HEADER_NAME):
        content = (folder / name).read_bytes()
        for length in range(0, len(content) - 1, 11):
            (folder / name).write_bytes(content[:length])
            with pytest.raises(ArtifactError):
                GlobalBatchPlan.open(folder, verify=False)
        (folder / name).write_bytes(content)
    GlobalBatchPlan.open(folder)


def test_says_what_is_missing(tmp_path, folder):
    with pytest.raises(MissingArtifactError, match="folder of a plan"):
        GlobalBatchPlan.open(tmp_path)
    (folder / ARRAYS_NAME).unlink()
    with pytest.raises(CorruptArtifactError, match="is not there, though its header is"):
        GlobalBatchPlan.open(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "zephon-bank"}, "is no plan's header"),
        ({"version": 2}, "A later release wrote it"),
        ({"version": None}, "has version None"),
        ({"digest": "0" * 64}, "another digest than its recipe gives"),
        ({"steps": 1}, "other batches than its header says"),
        ({"examples": 499}, "other batches than its header says"),
        ({"world_size": 9}, "other batches than its header says"),
        ({"statistics": {}}, "can't be used"),
        ({"more": 1}, "more"),
    ],
)
def test_refuses_foreign_and_later_headers(folder, changes, message):
    reheaded(folder, **changes)
    with pytest.raises(ArtifactError, match=message):
        GlobalBatchPlan.open(folder)


def test_refuses_a_later_plan_version_and_order(folder):
    recipe = json.loads((folder / HEADER_NAME).read_bytes())["recipe"]
    for name in ("version", "order_version"):
        reheaded(folder, recipe=recipe | {name: 2})
        with pytest.raises(ArtifactError, match=rf"recipe\.{name}: is 2"):
            GlobalBatchPlan.open(folder)


def test_refuses_the_arrays_of_another_plan(folder, tmp_path):
    plan_of(seed=9).save(tmp_path / "other")
    content = (tmp_path / "other" / ARRAYS_NAME).read_bytes()
    (folder / ARRAYS_NAME).write_bytes(content)
    with pytest.raises(CorruptArtifactError):
        GlobalBatchPlan.open(folder)
    record = {"name": ARRAYS_NAME, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    reheaded(folder, file=record)
    for verify in (True, False):
        with pytest.raises(CorruptArtifactError, match="is of plan"):
            GlobalBatchPlan.open(folder, verify=verify)


def rewritten(folder, change) -> None:
    """Write other columns under a header that agrees with them."""
    table = pa.ipc.open_file(folder / ARRAYS_NAME).read_all()
    table = change(table).combine_chunks()
    with pa.ipc.new_file(folder / "new", table.schema) as writer:
        writer.write_table(table)
    content = (folder / "new").read_bytes()
    (folder / "new").unlink()
    (folder / ARRAYS_NAME).write_bytes(content)
    reheaded(folder, file={"name": ARRAYS_NAME, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()})


def column(name, change):
    def changed(table):
        place = table.schema.get_field_index(name)
        return table.set_column(place, table.schema.field(place), change(table.column(name)))

    return changed


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.drop_columns(["rank"]), "has no column rank"),
        (lambda table: table.replace_schema_metadata({}), "no plan of this version"),
        (lambda table: table.slice(1), "other batches"),
        (column("step", lambda values: pa.array(values.to_numpy()[::-1])), "steps and ranks"),
        (column("token_slots", lambda values: pa.array(values.to_numpy() + 1)), "token slots"),
        (column("real_tokens", lambda values: pa.array(values.to_numpy() + 1)), None),
        (
            column(
                "examples",
                lambda lists: pa.LargeListArray.from_arrays(lists.chunk(0).offsets, pa.array(np.arange(500, dtype=np.uint32) + 1)),
            ),
            "examples",
        ),
    ],
)
def test_refuses_what_is_written_wrongly(folder, change, message):
    rewritten(folder, change)
    if message is None:  # nothing in a padded plan's files contradicts it
        GlobalBatchPlan.open(folder)
        return
    with pytest.raises(CorruptArtifactError, match=message):
        GlobalBatchPlan.open(folder)


def test_a_plan_of_version_1_stays_readable():
    """Files written by the first release, kept here."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as name:
        for file, content in GOLDEN_FILES.items():
            (Path(name) / file).write_bytes(zlib.decompress(base64.b85decode(content)))
        opened = GlobalBatchPlan.open(name)
        lengths = np.arange(1, 31) * 7 % 10 + 1
        plan = GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=20), world_size=2, seed=4, bucket_width=2)
        assert opened.digest == plan.digest
        assert all(np.array_equal(mine, its) for mine, its in zip(plan.arrays, opened.arrays, strict=True))
        assert opened.statistics == plan.statistics


KILLED = """
import os, signal, sys
import numpy as np
from zephon_core.batching.options import TokenBatchOptions
from zephon_core.batching.plan import file as plan_file
from zephon_core.batching.plan.global_plan import GlobalBatchPlan
lengths = (np.arange(500) * 7919 % 97 + 3).astype(np.int32)
plan = GlobalBatchPlan.build(lengths, TokenBatchOptions(maximum_tokens=400, layout="padded"), world_size=3, bucket_width=4)
kill = lambda *arguments, **more: os.kill(os.getpid(), signal.SIGKILL)
setattr(plan_file, sys.argv[2], kill)
plan.save(sys.argv[1])
"""


@pytest.mark.parametrize("at", ["_write_arrow", "write_json"])
def test_a_save_that_is_killed_leaves_no_plan_and_can_be_repeated(tmp_path, at):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "plan"), at], check=False)
    assert done.returncode == -9
    with pytest.raises(MissingArtifactError):
        GlobalBatchPlan.open(tmp_path / "plan")
    plan_of().save(tmp_path / "plan")
    assert GlobalBatchPlan.open(tmp_path / "plan").digest == plan_of().digest


GOLDEN_FILES = {
    "plan.arrow": (
        "c-rk&y>in)5MJ5x4~__OaDpKT<06F%GGodAGZf?r$fSXS8INqAV^1vESPJ7|D0l=4N*;hRMIOLq%9NBm1_guJJFQ}|gj6s?k(*h4x3{;u-`(v="
        "IygFd{=x!SVmnI!m>^pY)*%fk$YKwhreBR4_|$3qQuP6nC?8RVq`${lhtz+DGN@N=#}by^t~Z)?y>AUFqF-yZn|7_*=+}ErrPi<;wPvL)AH8m6"
        "(Cqf?YRl?3YHe#UkeSmc{n4@T1Awm>-=z2&3etxR${R8BM-va(8H!^T$4WFWkMdSbhZAqV>jb^w{&ehk6n8M0xlR!F0}NO}`G);-ly~HR{$sgB"
        "*eu{<FP8fWip(SCjyoL-ACyg3b`uI{OCvW!Y2hAf35h!t0|-Zfa3zB*YH8wKUaFkG&0mu|Cnv(|_~S|7!%jF)lY9Lt=2MROJV0@s`N%zWJHB{*"
        "D!iWPjD>d`3?m=q|LKODGvSOoDzOhAVm_BKpCVh=%<)cSe?jw0SNj5NUqb&9^Y;TW1+~WpN=Erbd1aGz`xy_SK)L~2RJn$V4oO{cY9(j_R&J5%"
        "L)P$j2x~qEtF{h*Zifu{c$sj{>~l8ng4r*ay{P?akMzhsWcEmZN&14>BR$S5!`2P|Kz|H3H;rL}VUnTF@VXe+;Rf|1%rlI}@3ZlHgeF^GhVi;X"
        "m}2%EvuD|Oj^+Pb{DAQ@SZzn~He>Gx*&Y&Z6YjEe%+noTqc!akCxgyxi(;gRTaq|s>3y<6IW^+4P4D0+|6K_0vfRH%bj~K-^Jtw0&Pb~pZqmAR"
        "cp7`($=C}jpff6h)%{;p>g~7e_FMM9e9OLIeIBTPv7g>!`X2"
    ),
    "plan.json": (
        "c-rk(+iv4H41Moc7=E4xx?lEJ7KI^8bYj#u*v_V%V*Y(4$F`KD3(N&r>;MY{i9}L7B*mk$A5U49SN+(UIsYTezrt|pyXVr(_Vhe7rpvzsgTG*$"
        ">b~<9c-g!92-9+);*=N+m}o8};SN^_98+2nMup?nASQ@l66x?|OH|3y5~{EhOyjD$`X9m819*QQe)ovyCH?4NEFR@ke;#c-xl4-Lh4At(o7nc}"
        "E<{YxE^44V&ZnuEPKIz1%#qeam&OvwmC{ZbB^a*2Dj>R&h)F>;7^Rfc$Qi*E6IKX+L{@?uCiBJhw=Fh+5CmJdF!c81_h?ILn0+o&8hdNr>h|0g"
        "bN>p9hQw$$9lV)#Xdr02bJN6Z%zJ-c?qo3b)g#};a_Ps$6;u5+)QYUa^6U-g;!?Z$l!z~N=lV-A%`gNMu_Z8quhi&*?9Z2{)px#`@n!djlP3XR"
        "i|>z^xt`|Q#^fKZ{we4iypTlb)#V)C&OtlO??qIgJpt3i+G4S}SVYCt^z*HJFwWK8vA7ry8vGnKPv@?xn`XIQbii^uP`9P=q`7U#+BFb*Y+PM%"
        "?8$+tiZ=_UyQ)ZFhU79)xq4G#%EO24%0cU^Mqoy{!Z_)LaV2Qb5}qigdAZm{MJSR&6N+zIrLEt5(rE@)q7=3tM`+A^Wgt2Tsj(+MiJADufww!m"
        "XI~(U8JByRykQ6R@l<-IJ~-7%ajFT^yKM-!u+7>3j@Q7v74}TUoXDHV*BdVe|5S{odku}cdfB1*^81pWNGbJkcPaFcz87YxX{_^rZ?}ZUMon)o"
        "iUt`>=-nN%Pi`(20NinjZObLg_L#DWo<)=_0%Xy5QiLoMaVg_c#idRlQn&;UCxAFX#0ex$FmVEk6I7hQ;slo@xFpRp!6gYUNpMMmOA=g?;F1KF"
        "B)Bxer3o%2>+<FHugdq_4gd6-5(D%D%bz^<J1@7&Kk|Klx9_Qo#eqL^7u}H;-LW?|X{2v#)|J1pV^;zvg2-U}KZSpL3jYhsUw;Jfr(Hw;V-LnH"
        "h4=Z<4^qkG-<cMc8P<<c2Q!ZSCEv*YJ}(p^jBis|9Ndkh)cG;Pa?Y6mX|<?SWwq3Pp78TKqeOrLg{<`R4p)Lylp|s+#?nAp<#C+deO8oVshHzV"
        "2_X<7V6+qj0SM|iRIGH;0)?t{eq5<cY5l)Fj&kdOJA!Qf^zG?yQF5P$"
    ),
}


def failing_write(monkeypatch, at: str) -> None:
    """Let the disk be full when one of the files is written."""

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(f"zephon_core.batching.plan.file.{at}", full)


@pytest.mark.parametrize("at", ["_write_arrow", "_write_header"])
def test_a_save_that_fails_leaves_the_plan_that_was_there(folder, monkeypatch, at):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    failing_write(monkeypatch, at)
    with pytest.raises(OSError, match="No space left"):
        plan_of(seed=5).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    GlobalBatchPlan.open(folder)


def test_saves_at_once_leave_one_whole_plan(folder):
    plans = [plan_of(seed=seed) for seed in range(4)]
    for plan in plans:
        assert plan.statistics
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: plans[number % 4].save(folder), range(40)))
    assert GlobalBatchPlan.open(folder).digest in {plan.digest for plan in plans}
    assert sorted(path.name for path in folder.iterdir()) == [ARRAYS_NAME, HEADER_NAME]


@pytest.mark.parametrize(
    "text", ["[" * 200_000, '{"a":' * 200_000, '{"format": "zephon-batch-plan", "version": 1, "steps": 1e999, "sha256": "0"}']
)
def test_a_header_that_is_hardly_json_is_damage(folder, text):
    (folder / HEADER_NAME).write_text(text)
    with pytest.raises(ArtifactError, match=HEADER_NAME):
        GlobalBatchPlan.open(folder)


@pytest.mark.parametrize("offset", [-8, 10**9])
def test_bad_offsets_are_found_without_reading_it_all(folder, offset):
    plan = plan_of()
    offsets = plan.arrays.offsets.copy()
    offsets[1] = offset
    path = folder / ARRAYS_NAME
    content, old = path.read_bytes(), plan.arrays.offsets.tobytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, offsets.tobytes()))
    with pytest.raises(CorruptArtifactError, match="has offsets that can't be right"):
        GlobalBatchPlan.open(folder, verify=False)


@pytest.mark.parametrize("part", [range(-1500, 0), range(900)])
def test_damage_that_nobody_looked_for_is_named_or_harmless(folder, part):
    """Not verified, a file is as good as its header, schema and offsets; what Arrow finds of the rest is said in one line."""
    path, refused = folder / ARRAYS_NAME, 0
    whole = path.read_bytes()
    for at in part:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[len(whole) + at + 1 if at < 0 else at + 1 :])
        try:
            plan = GlobalBatchPlan.open(folder, verify=False)
        except CorruptArtifactError as error:
            refused += 1
            assert "\n" not in str(error)
        else:
            assert sum(len(plan.batch(step, rank).indices) for step in range(plan.steps) for rank in range(3)) == 500
    assert refused > 100
