# SPDX-License-Identifier: Apache-2.0
"""A selection of PyTorch's own tests passes on 2, 3 and 4 ranks, in both forms.

With LS_TEST_FULL all of them run; the results and a page of them (tools/pytorch_tests.py) are left
in the folder LS_TEST_PYTORCH_FOLDER.
"""
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

from lockstep.torch import _cpp

# One of each operation, groups, errors, and DDP; some run under the name gloo.
SELECTION = """
    test_DistributedDataParallelCPU test_accumulate_gradients_no_sync_allreduce_hook
    test_all_gather_coalesced_simple test_all_gather_object_subgroup test_all_reduce_coalesced_sum
    test_all_reduce_complex_unsupported_ops test_all_reduce_full_group_product
    test_all_reduce_sum_async test_barrier_timeout_full_group test_batch_isend_irecv_gloo_tags
    test_broadcast_full_group test_ddp_create_graph test_destroy_group test_gather_full_group
    test_get_future test_isend_autograd_profiler test_monitored_barrier_gloo_subgroup
    test_reduce_full_group_sum test_scatter_object_list test_send_recv_any_source
    test_send_recv_with_tag_torch_profiler test_sparse_all_reduce_sum test_static_graph_api_cpu
""".split()

HERE = os.path.dirname(os.path.abspath(__file__))


def run(folder, variables, forms):
    tool = os.path.join(HERE, "..", "tools", "pytorch_tests.py")
    words = [sys.executable, tool, "run", os.path.join(folder, "results.json"), "--forms", *forms]
    words += ["--worlds", "2", "3", "4"]
    if "LS_TEST_FULL" not in os.environ:
        return subprocess.run([*words, "--only", *SELECTION], env=variables).returncode
    code = subprocess.run(words, env=variables).returncode
    words = [sys.executable, tool, "page", os.path.join(folder, "results.json"), "--tests"]
    subprocess.run([*words, "--output", os.path.join(folder, "pytorch-tests.md")], check=True)
    return code


def main():
    if importlib.util.find_spec("expecttest") is None:
        print("PyTorch's tests need expecttest (pip install expecttest)")
        return 77
    forms = ["python"]
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ, XDG_CACHE_HOME=folder)
        if _cpp.version() >= _cpp.OLDEST:
            build = [sys.executable, "-m", "lockstep.torch.build"]
            subprocess.run(build, env=variables, check=True)
            forms.append("cpp")
        if "LS_TEST_FULL" not in os.environ:
            return run(folder, variables, forms)
        kept = os.environ["LS_TEST_PYTORCH_FOLDER"]
        shutil.rmtree(kept, ignore_errors=True)
        os.makedirs(kept)
        return run(kept, variables, forms)


if __name__ == "__main__":
    sys.exit(main())
