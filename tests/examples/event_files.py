# SPDX-License-Identifier: Apache-2.0
"""event_files.py BIN-DIR: the event files of --tensorboard. They are decoded here, and by
TensorBoard's own reader where it is installed."""
import glob
import json
import struct

import job
from job import folder, launched, run, run_tests


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    with open(path, "rb") as f:
        data = f.read()
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert len(record) == length, "the last record is incomplete"
        assert struct.unpack_from("<I", data, at + 12 + length)[0] == masked(record)
        yield record
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def message(data):
    """The fields of a message: number -> list of values."""
    fields = {}
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = varint(data, at)
        elif kind == 1:
            (value,) = struct.unpack_from("<d", data, at)
            at += 8
        elif kind == 5:
            (value,) = struct.unpack_from("<f", data, at)
            at += 4
        else:
            assert kind == 2, kind
            length, at = varint(data, at)
            value = data[at : at + length]
            at += length
        fields.setdefault(key >> 3, []).append(value)
    assert at == len(data)
    return fields


def events(path):
    return [message(r) for r in records(path)]


def values(path):
    """(tag, step, fields of the summary value) of each summary."""
    for event in events(path):
        for summary in event.get(5, []):
            for value in message(summary).get(1, []):
                fields = message(value)
                yield fields[1][0].decode(), event.get(2, [0])[0], fields


def scalars(path):
    found = {}
    for tag, step, fields in values(path):
        if 2 in fields:
            found.setdefault(tag, []).append((step, fields[2][0]))
    return found


def the_file(directory):
    (path,) = glob.glob(f"{directory}/events.out.tfevents.*")
    return path


def mnist(*flags):
    return job.mnist("--seed", "3", "--batch-size", "20", "--print-freq", "5", *flags)


def scalars_are_those_of_the_metrics():
    with folder() as f:
        flags = ("--steps", "20", "--tensorboard", f"{f}/tb", "--metrics", f"{f}/m")
        run(*launched(2, *mnist(*flags)))
        with open(f"{f}/m", encoding="utf-8") as file:
            lines = [json.loads(line) for line in file]
        found = scalars(the_file(f"{f}/tb"))
        assert events(the_file(f"{f}/tb"))[0][3] == [b"brain.Event:2"]
        for tag, get in (
            ("loss/train", lambda m: m["loss"]),
            ("training/lr", lambda m: m["lr"]),
            ("seconds/forward", lambda m: m["seconds"]["forward"]),
        ):
            assert len(found[tag]) == len(lines) > 2, (tag, found[tag], lines)
            for (step, value), m in zip(found[tag], lines):
                assert step == m["step"]
                assert abs(value - get(m)) <= 1e-6 * abs(get(m)), (tag, value, m)


def histograms_count_all_elements():
    with folder() as f:
        run(*mnist("--steps", "4", "--tensorboard", f"{f}/tb", "--histograms", "2"))
        found = {}
        for tag, step, fields in values(the_file(f"{f}/tb")):
            if 5 in fields:
                found[tag, step] = message(fields[5][0])
        assert {step for _, step in found} == {2, 4}, found.keys()
        weights = found["weights/fc.weight", 4]
        gradients = found["gradients/fc.weight", 4]
        for h in (weights, gradients):
            limits = struct.unpack(f"<{len(h[6][0]) // 8}d", h[6][0])
            counts = struct.unpack(f"<{len(h[7][0]) // 8}d", h[7][0])
            assert len(limits) == len(counts)
            assert list(limits) == sorted(limits)
            assert sum(counts) == h[3][0] == 15680, h
            assert counts[0] == 0 and limits[0] <= h[1][0] <= h[2][0] < limits[-1], h
        assert weights[1] != gradients[1]


def a_resumed_run_replaces_later_steps():
    with folder() as f:
        tb = f"{f}/tb"
        save = ("--save", f"{f}/w.safetensors", "--tensorboard", tb)
        run(*mnist("--steps", "10", *save))
        first = the_file(tb)
        run(*mnist("--steps", "20", *save, "--resume"))
        (second,) = set(glob.glob(f"{tb}/events.*")) - {first}
        restart = [e for e in events(second) if 7 in e]
        assert len(restart) == 1 and restart[0][2] == [11], restart
        assert message(restart[0][7][0]) == {1: [1]}
        assert [step for step, _ in scalars(second)["loss/train"]] == [15, 20]


def flags_are_hyperparameters():
    with folder() as f:
        run(*mnist("--steps", "1", "--tensorboard", f"{f}/tb", "--lr", "0.125"))
        (found,) = [
            fields
            for tag, _, fields in values(the_file(f"{f}/tb"))
            if tag == "_hparams_/session_start_info"
        ]
        plugin = message(message(found[9][0])[1][0])
        assert plugin[1] == [b"hparams"]
        session = message(message(plugin[2][0])[3][0])
        flags = {}
        for entry in map(message, session[1]):
            flags[entry[1][0].decode()] = message(entry[2][0])
        assert flags["lr"] == {2: [0.125]}, flags
        assert flags["batch-size"] == {2: [20.0]}, flags
        assert flags["no-shuffle"] == {4: [0]}, flags


def a_folder_that_cannot_be_made_ends_the_run_at_its_start():
    with folder() as f:
        output = run(*mnist("--steps", "1", "--tensorboard", f"{f}/missing/tb"), code=1)
        assert "--tensorboard" in output and f"{f}/missing/tb" in output, output


def tensorboard_reads_the_file():
    try:
        from tensorboard.backend.event_processing import event_accumulator
    except ImportError:
        print("tensorboard is not installed: its reader was not tried")
        return
    with folder() as f:
        tb = f"{f}/tb"
        flags = ("--tensorboard", tb, "--histograms", "5", "--save", f"{f}/w.safetensors")
        run(*mnist("--steps", "10", *flags))
        run(*mnist("--steps", "20", *flags, "--resume"))
        reader = event_accumulator.EventAccumulator(tb, {"histograms": 0})
        reader.Reload()
        assert [e.step for e in reader.Scalars("loss/train")] == [5, 10, 15, 20]
        h = reader.Histograms("weights/fc.weight")
        assert [e.step for e in h] == [5, 10, 15, 20]
        assert h[-1].histogram_value.num == 15680
        assert reader.PluginTagToContent("hparams")


if __name__ == "__main__":
    run_tests(
        [
            scalars_are_those_of_the_metrics,
            histograms_count_all_elements,
            a_resumed_run_replaces_later_steps,
            flags_are_hyperparameters,
            a_folder_that_cannot_be_made_ends_the_run_at_its_start,
            tensorboard_reads_the_file,
        ]
    )
