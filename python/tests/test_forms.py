# SPDX-License-Identifier: Apache-2.0
"""Both forms of the backend do the same: each collective with each type and reduction, and with
each kind of wrong argument. The numbers, or the error and its text, of one are the other's."""
import os
import sys
import unittest
import warnings

import ranks
import torch
import torch.distributed as dist
from test_operations import numbers_of, operation, reduced, strided

from lockstep.torch import _cpp, _types

N = 2
CPU = torch.device("cpu")
DTYPES = sorted({v for v in vars(torch).values() if isinstance(v, torch.dtype)}, key=str)


def given(kind, op=None, root=0):
    """The options of a call."""
    options = kind()
    if op is not None:
        options.reduceOp = op
    if hasattr(options, "rootRank"):
        options.rootRank = root
    return options


def copies(tensor, n=N):
    return [tensor.clone() for _ in range(n)]


# --- collectives: each gets a group and this rank's numbers, and returns what it has written ---


def all_reduce(group, mine, op):
    dist.all_reduce(mine, op, group=group)
    return [mine]


def all_reduce_of_several(group, mine, op):
    several = [mine, mine.clone(), strided(mine)]
    group.allreduce(several, given(dist.AllreduceOptions, op)).wait()
    return several


def all_reduce_coalesced(group, mine, op):
    several = [mine, strided(mine)]
    dist.all_reduce_coalesced([*several, mine], op, group=group)
    return several


def all_reduce_sparse(group, mine, op):
    places = torch.tensor([[dist.get_rank(), 2, 3, 4, 5, 6]])
    tensor = torch.sparse_coo_tensor(places, mine, (8,), check_invariants=True)
    dist.all_reduce(tensor, op, group=group)
    return [tensor.coalesce().indices(), tensor.coalesce().values()]


def reduce(group, mine, op):
    dist.reduce(mine, 1, op, group=group)
    return [mine]


def reduce_scatter(group, mine, op):
    out = mine[:3].clone()
    dist.reduce_scatter(out, list(mine.split(3)), op, group=group)
    return [out]


def reduce_scatter_uneven(group, mine, op):
    parts = list(mine.split([2, 4]))
    out = parts[dist.get_rank()].clone()
    dist.reduce_scatter(out, parts, op, group=group)
    return [out]


def reduce_scatter_tensor(group, mine, op):
    out = strided(mine[:3])
    dist.reduce_scatter_tensor(out, mine, op, group=group)
    return [out]


def reduce_scatter_tensors(group, mine, op):
    outs = copies(mine[:3])
    options = given(dist.ReduceScatterOptions, op)
    group.reduce_scatter_tensor_coalesced(outs, [mine, strided(mine)], options).wait()
    return outs


# The part of the whole result that each returns first.
REDUCTIONS = {
    all_reduce: lambda rank: slice(0, 6),
    all_reduce_of_several: None,
    all_reduce_coalesced: lambda rank: slice(0, 6),
    all_reduce_sparse: None,
    reduce: lambda rank: slice(0, 6 * rank),
    reduce_scatter: lambda rank: slice(3 * rank, 3 * rank + 3),
    reduce_scatter_uneven: lambda rank: slice(2 * rank, 2 + 4 * rank),
    reduce_scatter_tensor: lambda rank: slice(3 * rank, 3 * rank + 3),
    reduce_scatter_tensors: lambda rank: slice(3 * rank, 3 * rank + 3),
}


def broadcast(group, mine):
    dist.broadcast(mine, 1, group=group)
    return [mine]


def broadcast_of_several(group, mine):
    several, options = [mine, mine.clone()], given(dist.BroadcastOptions, root=1)
    options.rootTensor = 1
    group.broadcast(several, options).wait()
    return several


def all_gather(group, mine):
    outs = copies(mine)
    dist.all_gather(outs, mine, group=group)
    return outs


def all_gather_uneven(group, mine):
    outs = [mine[:2].clone(), mine.clone()]
    dist.all_gather(outs, outs[dist.get_rank()].clone(), group=group)
    return outs


def all_gather_of_several(group, mine):
    lists = [copies(mine, 2 * N) for _ in range(2)]
    group.allgather(lists, copies(mine)).wait()
    return lists[0] + lists[1]


def all_gather_coalesced(group, mine):
    lists = [copies(mine) for _ in range(N)]
    group.allgather_coalesced(lists, copies(mine)).wait()
    return lists[0] + lists[1]


def all_gather_into_tensor(group, mine):
    out = torch.cat(copies(mine))
    dist.all_gather_into_tensor(out, mine, group=group)
    return [out]


def all_gather_into_tensors(group, mine):
    outs = copies(torch.cat(copies(mine)))
    group.allgather_into_tensor_coalesced(outs, [mine, strided(mine)]).wait()
    return outs


def gather(group, mine):
    outs = copies(mine) if dist.get_rank() == 1 else None
    dist.gather(mine, outs, 1, group=group)
    return outs or []


def scatter(group, mine):
    out = torch.zeros_like(mine)
    dist.scatter(out, [mine, strided(mine)] if dist.get_rank() == 1 else None, 1, group=group)
    return [out]


def all_to_all(group, mine):
    outs = copies(mine)
    dist.all_to_all(outs, [mine, strided(mine)], group=group)
    return outs


def all_to_all_single(group, mine):
    out, rows = torch.zeros_like(mine), [[2, 4], [4, 2]][dist.get_rank()]
    dist.all_to_all_single(out, mine, rows, rows, group=group)
    return [out]


def messages(group, mine):
    out = torch.zeros_like(mine)
    if dist.get_rank() == 0:
        dist.send(mine, 1, group=group)
        dist.recv(out, group=group)
    else:
        dist.recv(out, 0, group=group)
        dist.send(mine, 0, group=group)
    return [out]


MOVES = (
    broadcast,
    broadcast_of_several,
    all_gather,
    all_gather_uneven,
    all_gather_of_several,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_gather_into_tensors,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    messages,
)


# --- both forms ---


def outcome(call, *arguments):
    """The numbers that a call writes, or its error."""
    try:
        return [(str(tensor.dtype), repr(tensor.tolist())) for tensor in call(*arguments)]
    except Exception as error:
        return type(error).__name__, str(error).split("\n")[0]


def same(what, groups, call, make):
    """The outcome in each form, with arguments made anew."""
    found = {form: outcome(call, group, *make()) for form, group in groups.items()}
    assert found["python"] == found["cpp"], (what, found)
    return found["cpp"]


def numbers(dtype, name, rank):
    """Those of a type without arithmetic are 0."""
    try:
        return numbers_of(dtype, name, rank)
    except (RuntimeError, TypeError):
        return torch.zeros(6, dtype=torch.uint8).to(dtype)


def can_be_copied(dtype):
    """Some types of PyTorch are names, without tensors that can be used."""
    try:
        return strided(numbers(dtype, "SUM", 0)).clone().tolist() is not None
    except (RuntimeError, TypeError):
        return False


def collectives(groups, rank):
    for dtype in filter(can_be_copied, DTYPES):
        for move in MOVES:
            found = same((move, dtype), groups, move, lambda: [numbers(dtype, "SUM", rank)])
            check_refusal((move, dtype), found, _types.move_refusal(dtype))
        for call, part in REDUCTIONS.items():
            for name in _types.OPERATIONS:
                what, op = (call, dtype, name), operation(name)
                found = same(what, groups, call, lambda: [numbers(dtype, name, rank), op])
                check_numbers(what, found, part, rank)


def check_refusal(what, found, refusal):
    """torch.distributed views complex numbers as pairs, or refuses them itself."""
    if refusal and not what[1].is_complex and what[0] is not all_reduce_sparse:
        assert found == ("ValueError", refusal), (what, found)


def check_numbers(what, found, part, rank):
    """What both forms give is right, or refused as the table says."""
    _, dtype, name = what
    refusal = _types.refusal(dtype, name)
    check_refusal(what, found, refusal)
    if not refusal and part is not None and part(rank) != slice(0, 0):
        expected = reduced(dtype, name, [numbers(dtype, name, r).tolist() for r in range(N)])
        assert found[0] == (str(dtype), repr(expected[part(rank)])), (what, found, expected)


# --- wrong arguments, in groups of one rank ---

TENSORS = {
    "another type": lambda t: t.to(torch.int16),
    "no type of the library": lambda t: torch.empty(2, dtype=torch.bits8),
    "longer": lambda t: torch.ones(4),
    "empty": lambda t: torch.ones(0),
    "without dimensions": lambda t: torch.ones(()),
    "another shape": lambda t: t.reshape(1, -1),
    "not contiguous": strided,
    "on another device": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "compressed": lambda t: torch.ones(2, 2).to_sparse_csr(),
}
LISTS = {"empty": lambda t: [], "longer": lambda t: t + t[:1], "twice": lambda t: t + t}


def two():
    return torch.ones(2)


def calls():
    """Method: its arguments without options, and the options. A wrong one replaces each in turn."""
    return {
        "allreduce": ([[two(), two()]], dist.AllreduceOptions),
        "allreduce_coalesced": ([[two(), two()]], dist.AllreduceCoalescedOptions),
        "broadcast": ([[two(), two()]], dist.BroadcastOptions),
        "reduce": ([[two()]], dist.ReduceOptions),
        "allgather": ([[[two(), two()], [two(), two()]], [two(), two()]], None),
        "allgather_coalesced": ([[[two(), two()]], [two(), two()]], None),
        "_allgather_base": ([two(), two()], None),
        "allgather_into_tensor_coalesced": ([[two(), two()], [two(), two()]], None),
        "gather": ([[[two()]], [two()]], dist.GatherOptions),
        "scatter": ([[two()], [[two()]]], dist.ScatterOptions),
        "reduce_scatter": ([[two()], [[two()]]], dist.ReduceScatterOptions),
        "_reduce_scatter_base": ([two(), two()], dist.ReduceScatterOptions),
        "reduce_scatter_tensor_coalesced": (
            [[two(), two()], [two(), two()]],
            dist.ReduceScatterOptions,
        ),
        "alltoall": ([[two()], [two()]], dist.AllToAllOptions),
        "alltoall_base": ([two(), two(), [2], [2]], dist.AllToAllOptions),
    }


def changes(arguments):
    """Copies of nested lists, each with one wrong tensor or list, and what is wrong."""
    for i, argument in enumerate(arguments):
        is_list = isinstance(argument, list)
        for name, change in (LISTS if is_list else TENSORS).items():
            yield name, [*arguments[:i], change(argument), *arguments[i + 1 :]]
        if not is_list or isinstance(argument[0], int):
            continue  # sizes are no tensors
        for name, changed in changes(argument):
            yield name, [*arguments[:i], changed, *arguments[i + 1 :]]


def copied(value):
    """Nested lists with tensors of their own; those of a type without clone() stay."""
    if isinstance(value, list):
        return [copied(each) for each in value]
    has_copy = isinstance(value, torch.Tensor) and value.dtype is not torch.bits8
    return value.clone() if has_copy else value


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        return [value] if value.is_cpu and value.layout is torch.strided else []
    return sum(map(tensors_of, value), []) if isinstance(value, list) else []


def wrong(group, method, arguments, options):
    backend = group._get_backend(CPU)
    used = backend if hasattr(backend, method) else group
    work = getattr(used, method)(*arguments, *([options()] if options else []))
    if work is not None:
        work.wait()
    return tensors_of(arguments)


def stops_before(method, name):
    """Whether PyTorch's dispatcher, through which such a call goes, refuses it in the C++ form."""
    backend = torch._C._distributed_c10d.Backend
    return not hasattr(backend, method) and name in ("empty", *list(TENSORS)[-3:])


def wrong_arguments(groups):
    for method, (right, options) in calls().items():
        for name, changed in changes(right):
            if not stops_before(method, name):
                make = lambda: [method, copied(changed), options]  # noqa: B023, E731
                same((method, name, changed), groups, wrong, make)


class Forms(unittest.TestCase):
    @unittest.skipIf(not _cpp.available()[0], _cpp.available()[1])
    def test_forms(self):
        ranks.run(N, in_both_forms)

    @unittest.skipIf(not _cpp.available()[0], _cpp.available()[1])
    def test_ranks_of_different_forms(self):
        ranks.run(N, in_different_forms)


def in_different_forms(rank, n, store):
    """Each rank has another form."""
    ranks.join(store, rank, n, "gloo")
    os.environ["LOCKSTEP_TORCH_FORM"] = ("python", "cpp")[rank]
    group = dist.new_group(backend="lockstep")
    group.monitored_barrier()
    for dtype in (torch.float32, torch.bfloat16, torch.int16, torch.int64, torch.complex64):
        for move in MOVES:
            found = outcome(move, group, numbers(dtype, "SUM", rank))
            assert isinstance(found, list), (move, dtype, found)
        for call, part in REDUCTIONS.items():
            for name in ("SUM", "AVG") if call is not all_reduce_sparse else ("SUM",):
                found = outcome(call, group, numbers(dtype, name, rank), operation(name))
                assert isinstance(found, list), (call, dtype, name, found)
                check_numbers((call, dtype, name), found, part, rank)
    dist.barrier()


def in_both_forms(rank, n, store):
    warnings.simplefilter("ignore")
    ranks.join(store, rank, n, "gloo")
    groups, alone = {}, {}
    for form in ("python", "cpp"):
        os.environ["LOCKSTEP_TORCH_FORM"] = form
        groups[form] = dist.new_group(backend="lockstep")
        alone[form] = [dist.new_group([r], backend="lockstep") for r in range(n)][rank]
    collectives(groups, rank)
    wrong_arguments(alone)
    for factor in (torch.tensor([1j]), torch.tensor(True), torch.tensor(3)):
        op = dist._make_nccl_premul_sum(factor)
        same(("factor", factor), groups, all_reduce, lambda: [torch.ones(6), op])  # noqa: B023
    dist.barrier()


if __name__ == "__main__":
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    unittest.main(verbosity=2)
