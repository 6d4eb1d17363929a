# SPDX-License-Identifier: Apache-2.0
"""Every operation of c10d with CPU tensors gives what gloo gives, on 2 and 3 ranks."""
import functools
import math
import operator
import os
import sys
import threading
import unittest

import ranks
import torch
import torch.distributed as dist

import lockstep.torch
from lockstep.torch import _refusals, _types

TYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
MOVED = TYPES + [torch.int16, torch.bool, torch.complex64, torch.complex128]
SIZES = [0, 1, 7, 1000]
NEW = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 0)


def values(shape, dtype, seed):
    """Small whole numbers, so that sums are exact in every type."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, shape, generator=generator).to(dtype)


def check(what, got, expected):
    for a, b in zip(got, expected):
        assert a.dtype == b.dtype and a.shape == b.shape, (what, a.shape, b.shape)
        assert torch.equal(a, b), f"{what}:\n{a}\nexpected:\n{b}"


def strided(tensor):
    """The same values, not contiguous."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def both(body):
    """A test that runs body(rank, n, gloo) on 2 and 3 ranks."""

    def on_rank(rank, n, store):
        ranks.join(store, rank, n)
        gloo = dist.new_group(backend="gloo")
        body(rank, n, gloo)
        dist.barrier()  # a rank that ends early fails the others in gloo's new_group()
        dist.destroy_process_group()

    def test(self):
        for n in (2, 3):
            ranks.run(n, on_rank)

    return test


def reductions(rank, n, gloo):
    operations = [dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN, dist.ReduceOp.MAX]
    for dtype in TYPES:
        if dtype is torch.bfloat16 and not NEW:
            continue  # gloo of torch 1.13 does not have it
        for size in SIZES:
            for op in operations:
                mine = values((size,), dtype, rank)
                expected = mine.clone()
                dist.all_reduce(expected, op, group=gloo)
                for tensor in (mine.clone(), strided(mine)):
                    dist.all_reduce(tensor, op)
                    check(f"all_reduce {dtype} {op} {size}", [tensor], [expected])
                tensor = mine.clone()
                dist.reduce(tensor, n - 1, op)
                if rank == n - 1:
                    check(f"reduce {dtype} {op} {size}", [tensor], [expected])
                else:
                    check("the source of reduce", [tensor], [mine])


def other_reductions(rank, n, gloo):
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64, torch.int16, torch.bool):
        for op, fold in (
            (dist.ReduceOp.BAND, torch.bitwise_and),
            (dist.ReduceOp.BOR, torch.bitwise_or),
            (dist.ReduceOp.BXOR, torch.bitwise_xor),
        ):
            all_ranks = [values((9,), dtype, seed) for seed in range(n)]
            expected = all_ranks[0]
            for other in all_ranks[1:]:
                expected = fold(expected, other)
            tensor = all_ranks[rank].clone()
            dist.all_reduce(tensor, op)
            check(f"{op} {dtype}", [tensor], [expected])
    flags = torch.tensor([rank == 0, True, False])
    dist.all_reduce(flags)
    check("sum of bool", [flags], [torch.tensor([True, True, False])])
    short = torch.tensor([-300, 5, rank], dtype=torch.int16)
    dist.all_reduce(short)
    check("int16", [short], [torch.tensor([-300 * n, 5 * n, n * (n - 1) // 2], dtype=torch.int16)])
    pairs = torch.tensor([1 + 2j, 3j]) * (rank + 1)
    dist.all_reduce(pairs)
    check("complex", [pairs], [torch.tensor([1 + 2j, 3j]) * (n * (n + 1) // 2)])
    mean = torch.tensor([float(rank), 6.0])
    dist.all_reduce(mean, dist.ReduceOp.AVG)
    check("AVG", [mean], [torch.tensor([(n - 1) / 2, 6.0])])
    if NEW:
        scaled = torch.tensor([1.0, 2.0])
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        check("PREMUL_SUM", [scaled], [torch.tensor([0.5 * n, 1.0 * n])])
FOLDS = {
    "SUM": operator.add,
    "AVG": operator.add,
    "PREMUL_SUM": operator.add,
    "PRODUCT": operator.mul,
    "MIN": min,
    "MAX": max,
    "BAND": operator.and_,
    "BOR": operator.or_,
    "BXOR": operator.xor,
}
FACTOR = 2.5


def reduced(dtype, name, of_ranks):
    """The reduction of a list of numbers of each rank, by arithmetic of Python."""
    n = len(of_ranks)
    out = [functools.reduce(FOLDS[name], numbers) for numbers in zip(*of_ranks)]
    if dtype is torch.bool:
        return [bool(number) for number in out]
    if dtype.is_floating_point or dtype.is_complex:
        out = [number * {"PREMUL_SUM": FACTOR, "AVG": 1 / n}.get(name, 1) for number in out]
        wide = torch.complex64 if dtype.is_complex else torch.float32
        return torch.tensor(out, dtype=wide).to(dtype).tolist()
    if name == "AVG":
        out = [math.trunc(number / n) for number in out]
    bits = 8 * torch.empty(0, dtype=dtype).element_size()
    low = -(1 << (bits - 1)) if str(dtype).startswith("torch.int") else 0
    return [(number - low) % (1 << bits) + low for number in out]


def numbers_of(dtype, name, rank):
    """Numbers whose reductions are exact; with the highest and lowest ones of integers."""
    if dtype.is_floating_point or dtype.is_complex or dtype is torch.bool:
        numbers = values((6,), torch.float32, rank) * (6 if name == "AVG" else 1)
        return (numbers * 2 if name == "PREMUL_SUM" else numbers).to(dtype)
    bits = 8 * torch.empty(0, dtype=dtype).element_size()
    same_size = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}[bits]
    top = (1 << (bits - 1)) - 1 if bits < 64 or name != "AVG" else 1 << 40
    signed = torch.tensor([top - rank, -1 - rank, -top + rank, 5, rank, 0], dtype=same_size)
    return signed.view(dtype)


def operation(name):
    if name == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(FACTOR)
    return getattr(dist.ReduceOp, name)


def table(rank, n, gloo):
    """Each reduction of each type is right or refused, as _types.py says."""
    group = dist.distributed_c10d._get_default_group()
    for type_name in _types.TYPES:
        dtype = getattr(torch, type_name, None)
        for name in _types.OPERATIONS if dtype is not None else ():
            if name == "PREMUL_SUM" and not NEW:
                continue
            options = dist.AllreduceOptions()
            options.reduceOp = operation(name)
            refusal = _types.refusal(dtype, name)
            if refusal:
                tensor = torch.zeros(6, dtype=dtype)
                try:
                    group.allreduce([tensor], options).wait()
                    raise AssertionError(f"{name} of {dtype} was accepted")
                except ValueError as error:
                    assert refusal == str(error).split("\n")[0], error
                continue
            of_ranks = [numbers_of(dtype, name, r) for r in range(n)]
            expected = reduced(dtype, name, [numbers.tolist() for numbers in of_ranks])
            for make in (torch.clone, strided):
                tensor = make(of_ranks[rank])
                group.allreduce([tensor], options).wait()
                assert tensor.tolist() == expected, (dtype, name, tensor, expected)


def table_of_others(rank, n, gloo):
    """reduce and reduce_scatter compute as all_reduce."""
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    cases = [("int8", "AVG"), ("int64", "AVG"), ("int16", "MIN"), ("float32", "AVG")]
    if NEW:
        cases += [("bool", "SUM"), ("uint32", "MAX")]
        cases += [("float8_e5m2", "SUM"), ("float64", "PREMUL_SUM")]
    for type_name, name in cases:
        if not hasattr(torch, type_name):
            continue
        dtype, op = getattr(torch, type_name), operation(name)
        of_ranks = [numbers_of(dtype, name, r) for r in range(n)]
        expected = reduced(dtype, name, [numbers.tolist() for numbers in of_ranks])
        each = 6 // n
        mine = expected[each * rank : each * (rank + 1)]
        for make in (torch.clone, strided):
            tensor = make(of_ranks[rank])
            dist.reduce(tensor, 1, op)
            before = of_ranks[rank].tolist()
            assert tensor.tolist() == (expected if rank == 1 else before), (dtype, name, tensor)
            out = make(torch.zeros(each, dtype=dtype))
            scatter(out, make(of_ranks[rank]), op)
            assert out.tolist() == mine, ("reduce_scatter_tensor", dtype, name, out, mine)
            out = make(torch.zeros(each, dtype=dtype))
            dist.reduce_scatter(out, list(make(of_ranks[rank]).split(each)), op)
            assert out.tolist() == mine, ("reduce_scatter", dtype, name, out, mine)


def factors(rank, n, gloo):
    """PREMUL_SUM takes one real number of any type, or refuses it."""
    if not NEW:
        return
    for factor in (torch.tensor([0.5], dtype=torch.float64), torch.tensor(0.5).half()):
        for dtype in (torch.float32, torch.float16, torch.float64):
            tensor = torch.full((3,), 2.0, dtype=dtype)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
            check(f"a factor of {factor.dtype}", [tensor], [torch.full((3,), 1.0 * n, dtype=dtype)])
    tensor = torch.ones(3)
    dist.all_reduce(tensor, dist._make_nccl_premul_sum(torch.tensor(3)))
    check("a factor of int64", [tensor], [torch.full((3,), 3.0 * n)])
    for factor in (torch.tensor([1j]), torch.tensor(True)):
        try:
            dist.all_reduce(torch.ones(3), dist._make_nccl_premul_sum(factor))
            raise AssertionError(f"{factor} was accepted")
        except ValueError as error:
            assert "must be one real number" in str(error), error


def conjugates(rank, n, gloo):
    """The elements of lazy views are sent as they read."""
    group = dist.distributed_c10d._get_default_group()
    for make in (torch.conj, torch._neg_view):
        of_ranks = [make(torch.tensor([1 + 2j, 3j]) * (r + 1)) for r in range(n)]
        out = [torch.zeros(2, dtype=torch.complex64) for _ in range(n)]
        group.allgather([out], [of_ranks[rank]]).wait()
        check("all_gather", out, of_ranks)
        conjugated_results(rank, n, make, of_ranks)


def conjugated_results(rank, n, make, of_ranks):
    """What is written reads as the result. PyTorch's dispatcher gives the C++ form copies of such
    tensors, except in lists of lists, and drops them (docs/pytorch.md)."""
    group = dist.distributed_c10d._get_default_group()
    views = [make(torch.zeros(2, dtype=torch.complex64)) for _ in range(n)]
    group.allgather([views], [of_ranks[rank]]).wait()
    check("all_gather", views, of_ranks)
    if make is torch._neg_view and lockstep.torch.form()[0] == "python":
        negated_results(rank, n)


def negated_results(rank, n):
    for dtype in (torch.float32, torch.int64, torch.complex64):
        of_ranks = [torch._neg_view(torch.tensor([2, 3], dtype=dtype) + r) for r in range(n)]
        mine, total = of_ranks[rank], sum(of_ranks)
        one = torch._neg_view(torch.zeros(2, dtype=dtype))
        one.copy_(mine)
        dist.broadcast(one, 1 % n)
        check("broadcast", [one], [of_ranks[1 % n]])
        one.copy_(mine)
        dist.all_reduce(one)
        check("all_reduce", [one], [total])
        one.copy_(mine)
        dist.reduce(one, 0)
        if rank == 0:
            check("reduce", [one], [total])
        dist.reduce_scatter(one, of_ranks)
        check("reduce_scatter", [one], [mine * n])
        uneven = [torch._neg_view(torch.ones(r, dtype=dtype)) for r in range(n)]
        part = torch._neg_view(torch.zeros(rank, dtype=dtype))
        dist.reduce_scatter(part, uneven)
        check("reduce_scatter, uneven", [part], [uneven[rank] * n])


def uneven_parts(rank, n, gloo):
    """The parts of reduce_scatter may have different sizes, one of them none."""
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.complex64):
        for strided in (False, True):
            parts = [torch.ones(r, 2 if strided else 1, dtype=dtype)[:, 0] for r in range(n)]
            out = torch.zeros(rank, dtype=dtype)
            dist.reduce_scatter(out, parts)
            check(f"reduce_scatter {dtype}", [out], [torch.full((rank,), n, dtype=dtype)])
    if n > 1:
        try:
            dist.reduce_scatter(torch.zeros(rank + 3), [torch.ones(r) for r in range(n)])
            raise AssertionError("a result of another size was accepted")
        except ValueError as error:
            assert f"tensors of {rank} and {rank + 3} elements" in str(error), error


def shared_memory(rank, n, gloo):
    """The tensors of a call may share memory: all are read before a result is written."""
    total = n * (n + 1) // 2
    tensor = torch.tensor([1.0 + rank])
    dist.all_reduce_coalesced([tensor, tensor])
    check("all_reduce_coalesced", [tensor], [torch.tensor([1.0 * total])])
    for make in (torch.clone, strided):
        tensor = make(torch.arange(10.0) * (rank + 1))
        dist.all_reduce_coalesced([tensor[:6], tensor[4:], tensor])
        check("overlapping views", [tensor], [torch.arange(10.0) * total])
    tensor = torch.zeros(2)
    dist.all_gather([tensor] * n, torch.full((2,), float(rank)))
    check("all_gather, the last one stays", [tensor], [torch.full((2,), n - 1.0)])
    parts = list((torch.zeros(n, 2) + rank).unbind())
    dist.all_gather(parts, parts[0])  # the source is another rank's part, except on rank 0
    check("all_gather from a part", parts, [torch.full((2,), float(r)) for r in range(n)])
    parts = [torch.full((2,), 10.0 * rank + to) for to in range(n)]
    dist.all_to_all(parts, parts)
    check("all_to_all in place", parts, [torch.full((2,), 10.0 * r + rank) for r in range(n)])
    if not hasattr(dist, "_coalescing_manager") or not hasattr(dist, "reduce_scatter_tensor"):
        return
    whole = torch.arange(4.0 * n) + rank
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(whole[:2], whole[: 2 * n])
        dist.reduce_scatter_tensor(whole[2:4], whole[: 2 * n])
    part = n * torch.arange(2.0 * n)[2 * rank : 2 * rank + 2] + n * (n - 1) / 2
    check("reduce_scatter_tensor", [whole[:4]], [torch.cat([part, part])])
    out = torch.zeros(2 * n)
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(out, torch.full((2,), 1.0 + rank))
        dist.all_gather_into_tensor(out, torch.full((2,), 5.0 + rank))
    expected = torch.arange(5.0, 5.0 + n).repeat_interleave(2)
    check("all_gather_into_tensor, the last one stays", [out], [expected])


def expanded(rank, n, gloo):
    """Elements of a target may share memory, as with gloo."""
    for group in (None, gloo):
        mine = [torch.tensor([[1.0 + rank], [2.0 + rank]]).expand(2, 3) for _ in range(3)]
        dist.all_reduce(mine[0], group=group)
        dist.broadcast(mine[1], 1, group=group)
        dist.reduce(mine[2], 0, group=group)
        del mine[3 if rank == 0 else 2 :]  # gloo writes to the others, too
        if group is None:
            got = mine
    check("expanded tensors", got, mine)


def results(rank, n, gloo):
    """Parameters and tensors of inference mode are written as others."""
    shape = (2, 3, 2, 2)

    def mine():
        return torch.full(shape, rank + 1.0).contiguous(memory_format=torch.channels_last)

    with torch.inference_mode():
        frozen = mine()
        numbers = strided(torch.tensor([5 * rank, 7]))
        dist.all_reduce(numbers, dist.ReduceOp.AVG, async_op=True).get_future().wait()
    check("AVG in inference mode", [numbers], [torch.tensor([5 * (n - 1) // 2, 7])])
    for tensor in (torch.nn.Parameter(mine()), frozen):
        dist.broadcast(tensor, 1)
        check("broadcast", [tensor.detach()], [torch.full(shape, 2.0)])
        dist.all_reduce(tensor)
        check("all_reduce", [tensor.detach()], [torch.full(shape, 2.0 * n)])


def several(rank, n, gloo):
    """Old calls with several tensors: the reduction of all of them, all get the root's."""
    group = dist.distributed_c10d._get_default_group()
    backend = gloo._get_backend(torch.device("cpu")) if NEW else gloo
    names = ("SUM", "PRODUCT", "MIN", "MAX")

    def results(used):
        found = []
        for name in names:
            options = dist.AllreduceOptions()
            options.reduceOp = getattr(dist.ReduceOp, name)
            mine = [values((2, 3), torch.float32, 10 * rank + k) for k in range(3)]
            used.allreduce(mine, options).wait()
            found += mine
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = 1, 1
        mine = [values((2, 3), torch.int64, 10 * rank + k) for k in range(2)]
        used.broadcast(mine, options).wait()
        found += mine
        lists = [[torch.zeros(4) for _ in range(2 * n)] for _ in range(2)]
        work = used.allgather(lists, [torch.full((4,), 10.0 * rank + k) for k in range(2)])
        work.wait()
        assert [len(part) for part in work.get_future().value()] == [2 * n, 2 * n]
        return [*found, *lists[0], *lists[1]]

    check("several tensors", results(group), results(backend))


def uneven_gather(rank, n, gloo):
    """The parts of all_gather may have different sizes, one of them none."""
    for dtype in (torch.float32, torch.bfloat16, torch.complex64):
        for make in (torch.clone, strided):
            out = [make(torch.zeros(r, dtype=dtype)) for r in range(n)]
            dist.all_gather(out, make(torch.full((rank,), rank, dtype=dtype)))
            check("all_gather", out, [torch.full((r,), r, dtype=dtype) for r in range(n)])


def monitored(rank, n, gloo):
    """monitored_barrier leaves no keys in the store."""
    group = dist.distributed_c10d._get_default_group()
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    before = store.num_keys()
    dist.barrier()
    for _ in range(3):
        group.monitored_barrier()
    ended = ranks.wait_for(lambda: store.num_keys() <= before)
    assert ended, (before, store.num_keys())
    dist.barrier()


def movements(rank, n, gloo):
    for dtype in MOVED:
        for size in SIZES:
            mine = values((size,), dtype, rank)
            everywhere = [values((size,), dtype, seed) for seed in range(n)]
            for make in (torch.clone, strided):
                tensor = make(mine)
                dist.broadcast(tensor, n - 1)
                check(f"broadcast {dtype} {size}", [tensor], [everywhere[n - 1]])
                out = [make(torch.zeros(size, dtype=dtype)) for _ in range(n)]
                dist.all_gather(out, make(mine))
                check(f"all_gather {dtype} {size}", out, everywhere)
                out = [make(torch.zeros(size, dtype=dtype)) for _ in range(n)]
                dist.gather(make(mine), out if rank == 1 else None, dst=1)
                if rank == 1:
                    check(f"gather {dtype} {size}", out, everywhere)
                target = make(torch.zeros(size, dtype=dtype))
                parts = [make(values((size,), dtype, 10 + to)) for to in range(n)]
                dist.scatter(target, parts if rank == 0 else None, src=0)
                check(f"scatter {dtype} {size}", [target], [values((size,), dtype, 10 + rank)])
                out = [make(torch.zeros(size, dtype=dtype)) for _ in range(n)]
                parts = [make(values((size,), dtype, 100 * rank + to)) for to in range(n)]
                dist.all_to_all(out, parts)
                expected = [values((size,), dtype, 100 * origin + rank) for origin in range(n)]
                check(f"all_to_all {dtype} {size}", out, expected)


def single_tensors(rank, n, gloo):
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    scatter = getattr(dist, "reduce_scatter_tensor", None) or dist._reduce_scatter_base
    everywhere = [values((3, 5), torch.float32, seed) for seed in range(n)]
    out = torch.zeros(3 * n, 5)
    gather(out, everywhere[rank])
    check("all_gather_into_tensor", [out], [torch.cat(everywhere)])
    whole = [values((3 * n, 5), torch.float32, seed) for seed in range(n)]
    out = torch.zeros(3, 5)
    scatter(out, whole[rank])
    check("reduce_scatter_tensor", [out], [sum(whole)[3 * rank : 3 * rank + 3]])
    out = torch.zeros(3, 5)
    dist.reduce_scatter(out, list(whole[rank].chunk(n)))
    check("reduce_scatter", [out], [sum(whole)[3 * rank : 3 * rank + 3]])
    short = [t.to(torch.int16) for t in whole]
    out = torch.zeros(3, 5, dtype=torch.int16)
    scatter(out, short[rank])
    check("reduce_scatter int16", [out], [sum(short)[3 * rank : 3 * rank + 3]])
    # Rank r sends r + p rows to rank p.
    rows = [rank + peer for peer in range(n)]
    source = torch.full((sum(rows), 2), float(rank))
    out = torch.zeros(sum(rows), 2)
    dist.all_to_all_single(out, source, rows, rows)
    parts = [torch.full((peer + rank, 2), float(peer)) for peer in range(n)]
    check("all_to_all_single", [out], [torch.cat(parts)])
    out = [torch.zeros(peer + rank, 2) for peer in range(n)]
    dist.all_to_all(out, list(source.split(rows)))
    check("all_to_all, uneven", out, parts)
    tensors = [torch.full((k,), float(rank)) for k in (1, 5)]
    dist.all_reduce_coalesced(tensors)
    total = float(n * (n - 1) // 2)
    check("all_reduce_coalesced", tensors, [torch.full((k,), total) for k in (1, 5)])


def messages(rank, n, gloo):
    right, left = (rank + 1) % n, (rank - 1) % n
    for dtype in MOVED:
        received = torch.zeros(6, dtype=dtype)
        work = dist.irecv(received, left, tag=3)
        dist.send(values((6,), dtype, rank), right, tag=3)
        work.wait()
        check(f"send {dtype}", [received], [values((6,), dtype, left)])
    if rank == 0:
        seen = set()
        for _ in range(n - 1):
            tensor = torch.zeros(2)
            origin = dist.recv(tensor)
            check("recv from any", [tensor], [torch.full((2,), float(origin))])
            seen.add(origin)
        assert seen == set(range(1, n)), seen
    else:
        dist.send(torch.full((2,), float(rank)), 0)
    dist.barrier()  # the next messages are no answer to a recv from any rank
    received = torch.zeros(4)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received, left),
            dist.P2POp(dist.isend, torch.full((4,), float(rank)), right),
        ]
    )
    for work in works:
        work.wait()
    check("batch_isend_irecv", [received], [torch.full((4,), float(left))])


def objects(rank, n, gloo):
    out = [None] * n
    dist.all_gather_object(out, {"rank": rank, "text": "x" * rank})
    assert out == [{"rank": r, "text": "x" * r} for r in range(n)], out
    out = [None] * n if rank == 0 else None
    dist.gather_object(("of", rank), out, dst=0)
    assert rank != 0 or out == [("of", r) for r in range(n)], out
    shared = ["first", 2, {3}] if rank == 1 else [None] * 3
    dist.broadcast_object_list(shared, src=1)
    assert shared == ["first", 2, {3}], shared
    out = [None]
    dist.scatter_object_list(out, [f"for {r}" for r in range(n)] if rank == 0 else None, src=0)
    assert out == [f"for {rank}"], out


def asynchronous(rank, n, gloo):
    tensors = [torch.full((1000,), float(rank + k)) for k in range(5)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    done = []
    futures = [
        work.get_future().then(lambda future, k=k: done.append(k) or future.value())
        for k, work in enumerate(works)
    ]
    for k, future in enumerate(futures):
        (result,) = future.wait()
        check("a future's value", [result], [torch.full((1000,), n * (n - 1) / 2 + n * k)])
    assert sorted(done) == list(range(5)), done
    assert all(work.is_completed() and work.is_success() for work in works)
    for work in works:
        work.wait()
    dropped = torch.ones(100000)
    dist.all_reduce(dropped, async_op=True)  # the handle is dropped at once
    dist.barrier()
    assert dropped[0] == n and dropped[-1] == n, dropped


def nested(rank, n, gloo):
    """The callback of a future starts an operation and waits for its future."""

    def again(future):
        (tensor,) = future.value()
        return dist.all_reduce(tensor, async_op=True).get_future().wait()

    for size in (1, 1000, 100000):
        for _ in range(20):
            first = dist.all_reduce(torch.ones(size), async_op=True)
            (result,) = first.get_future().then(again).then(again).wait()
            check("a nested all_reduce", [result], [torch.full((size,), float(n**3))])


CHAIN = 2000


class Chain:
    """Operations in two groups, each of which the callback of the one before starts."""

    def __init__(self, others, waits):
        self.groups = [None, others]
        self.waits = waits  # some callbacks wait for further operations
        self.value = torch.zeros(1)
        self.end = threading.Event()
        self.error = None

    def go_on(self, left):
        work = dist.all_reduce(self.value, dist.ReduceOp.MAX, self.groups[left % 2], True)
        future = work.get_future()
        del work  # the callback may be all that is left of the operation
        future.then(lambda ended: self.called(ended, left))

    def called(self, ended, left):
        try:
            ended.value()
            if self.waits and left % 7 == 0:
                dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
            if left > 0:
                self.go_on(left - 1)
                return
        except Exception as error:
            self.error = error
        self.end.set()


def chains(rank, n, gloo):
    """Callbacks that start operations, whose callbacks start operations, and so on."""
    others = dist.new_group(list(range(n)))
    for waits in (False, True):
        chain = Chain(others, waits)
        chain.go_on(CHAIN)
        assert chain.end.wait(100), "the chain does not end"
        assert chain.error is None, chain.error
        dist.barrier()


def dropped(rank, n, gloo):
    """Operations whose handles nothing refers to end; old torch needs the newest handles."""
    tensors = [torch.zeros(1) for _ in range(600)]
    if rank == 0:
        for tensor in tensors:
            dist.irecv(tensor, 1)
        kept = list(lockstep.torch._work._unwaited.values())
        assert all(work._handle is not None for work in kept), "the newest handles are gone"
    dist.barrier()
    if rank == 1:
        for k in range(len(tensors) + 1):
            dist.send(torch.full((1,), float(k)), 0)
    if rank == 0:
        dist.recv(torch.zeros(1), 1)  # arrives after those before it; a barrier may not
        check("dropped handles", tensors, [torch.full((1,), float(k)) for k in range(600)])


def groups(rank, n, gloo):
    pair = dist.new_group([0, 1])
    last = dist.new_group([n - 1])
    if rank < 2:
        tensor = torch.tensor([rank + 1.0])
        dist.all_reduce(tensor, group=pair)
        check("all_reduce of a group", [tensor], [torch.tensor([3.0])])
        assert dist.get_rank(pair) == rank and dist.get_world_size(pair) == 2
    if rank == n - 1:
        tensor = torch.tensor([5.0])
        dist.all_reduce(tensor, group=last)
        check("a group of one", [tensor], [torch.tensor([5.0])])
    dist.barrier()
    if rank < 2:
        dist.destroy_process_group(pair)


def splits(rank, n, gloo):
    if not hasattr(dist.ProcessGroup, "new_window"):
        return  # before torch 2.15 split_group() refuses groups without a device
    mine = dist.split_group(split_ranks=[[0, n - 1], [1]] if n > 2 else [[1, 0]])
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, group=mine)
    expected = 2.0 if n > 2 and rank == 1 else 1.0 + n
    check("all_reduce of a split", [tensor], [torch.tensor([expected])])


def sparse(rank, n, gloo):
    def make(dtype):
        rows = torch.tensor([[rank, rank, 5], [0, 1, 2]])
        return torch.sparse_coo_tensor(rows, torch.tensor([1, 2, 3]).to(dtype), (6, 4))

    for dtype in (torch.float32, torch.float64):
        expected, tensor = make(dtype), make(dtype)
        dist.all_reduce(expected, group=gloo)
        dist.all_reduce(tensor)
        assert tensor.is_coalesced() == expected.is_coalesced()
        check("sparse", [tensor.to_dense()], [expected.to_dense()])
        check("indices", [tensor.coalesce().indices()], [expected.coalesce().indices()])
        several = [make(dtype), make(dtype)]
        dist.distributed_c10d._get_default_group().allreduce(several).wait()
        check("several", [t.to_dense() for t in several], [2 * expected.to_dense()] * 2)


def refused(call):
    try:
        call()
    except ValueError as error:
        return str(error).split("\n")[0]
    raise AssertionError("accepted")


def wrong_calls(rank, n, gloo):
    """Each text of _refusals.py."""
    group = dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu"))
    gather = getattr(dist, "all_gather_into_tensor", None) or dist._all_gather_base
    one, two, short = torch.ones(1), torch.ones(2), torch.ones(1, dtype=torch.int16)
    own, sparse_max = dist.BroadcastOptions(), dist.AllreduceOptions()
    own.rootRank, own.rootTensor = rank, 3
    sparse_max.reduceOp = dist.ReduceOp.MAX
    long, lists = torch.ones(n + 1), [[one] * (n + 1)]
    uneven = torch.sparse_coo_tensor([[0]], [1.0], (rank + 1,))
    other = 0 if rank > 0 else 1  # the first rank with another shape
    calls = {
        "none": (["all_reduce"], lambda: group.allreduce([])),
        "tensors": ([2], lambda: group.send([one, one], 0, 0)),
        "lists": ([2], lambda: group.reduce_scatter([one], [[one] * n] * 2)),
        "list": (["all_gather", n + 1, n], lambda: group.allgather(lists, [one])),
        "lengths": (["all_gather", 1, 2], lambda: group.allgather(lists, [one, one])),
        "root": ([3, 1], lambda: group.broadcast([one], own)),
        "device": (["meta"], lambda: group.send([torch.ones(1, device="meta")], 0, 0)),
        "layout": ([], lambda: group.send([one.to_sparse()], 0, 0)),
        "types": (["all_reduce"], lambda: group.allreduce([one, short])),
        "sizes": (["all_reduce", 2, 1], lambda: group.allreduce([one, two])),
        "whole": (["all_gather", n + 1, 1, n], lambda: gather(long, one)),
        "rows": ([n + 1, n], lambda: dist.all_to_all_single(long, long)),
        "splits": ([[1], n, n + 1], lambda: dist.all_to_all_single(long, long, [1], [1])),
        "sparse sum": ([], lambda: group.allreduce([one.to_sparse()], sparse_max)),
        "shapes": ([[rank + 1], rank, [other + 1], other], lambda: group.allreduce([uneven])),
    }
    if NEW:
        flag = dist._make_nccl_premul_sum(torch.tensor(True))
        calls["factor"] = ([1, torch.bool], lambda: dist.all_reduce(torch.ones(1), flag))
    assert {*calls, "factor"} == _refusals.TEXTS.keys()
    for name, (given, call) in calls.items():
        expected = "lockstep: " + _refusals.TEXTS[name].format(*given)
        got = refused(call)
        assert got == expected, (name, got, expected)
    dist.barrier()


def events(rank, n, gloo):
    """Each operation is one event of torch's profiler."""
    if not NEW:
        return
    with torch.autograd.profiler.profile(record_shapes=True) as profiler:
        dist.all_reduce(torch.ones(5))
        dist.broadcast(torch.ones(2, 3), 0)
        dist.all_reduce_coalesced([torch.ones(1), torch.ones(2)])
    found = [e for e in profiler.function_events if e.name.startswith("lockstep:")]
    assert all(event.is_async for event in found), found
    shapes = sorted((event.name, event.input_shapes) for event in found)
    assert shapes == [
        ("lockstep:all_reduce", [[1], [2]]),
        ("lockstep:all_reduce", [[5]]),
        ("lockstep:broadcast", [[2, 3]]),
    ], shapes


class Operations(unittest.TestCase):
    test_reductions = both(reductions)
    test_other_reductions = both(other_reductions)
    test_table = both(table)
    test_table_of_others = both(table_of_others)
    test_factors = both(factors)
    test_conjugates = both(conjugates)
    test_uneven_parts = both(uneven_parts)
    test_shared_memory = both(shared_memory)
    test_expanded = both(expanded)
    test_results = both(results)
    test_several = both(several)
    test_uneven_gather = both(uneven_gather)
    test_monitored = both(monitored)
    test_movements = both(movements)
    test_single_tensors = both(single_tensors)
    test_messages = both(messages)
    test_objects = both(objects)
    test_asynchronous = both(asynchronous)
    test_nested = both(nested)
    test_chains = both(chains)
    test_dropped = both(dropped)
    test_groups = both(groups)
    test_splits = both(splits)
    test_sparse = both(sparse)
    test_events = both(events)
    test_wrong_calls = both(wrong_calls)

    def test_page(self):
        """docs/pytorch.md has the table of _types.py."""
        alike = {}
        for name, kind in _types.TYPES.items():
            alike.setdefault((", ".join(kind.operations), kind.computed), []).append(name)
        rows = [
            f"| {', '.join(names)} | {can or 'none'} | {computed} |".replace("|  |", "| |")
            for (can, computed), names in alike.items()
        ]
        here = os.path.dirname(os.path.abspath(__file__))
        with open(os.path.join(here, "..", "..", "docs", "pytorch.md")) as page:
            lines = page.read().split("\n")
        self.assertEqual([row for row in rows if row not in lines], [])


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
