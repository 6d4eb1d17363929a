# SPDX-License-Identifier: Apache-2.0
# The native backend's sources, relative to src/comm; included there.
set(native_sources errors.c message_pool.c sleep.c engine/hosts.c engine/join.c engine/native.c
    engine/native_groups.c link/link.c link/link_sealed.c link/link_striped.c link/link_tcp.c
    link/mesh.c link/mesh_streams.c link/message.c memory/copy.c memory/link_shm.c memory/local.c
    memory/local_join.c memory/offer_way.c memory/segment.c memory/segment_map.c p2p/direct.c
    p2p/exec.c p2p/match.c plan/layout.c plan/plan_all_reduce.c plan/plan_barrier.c
    plan/plan_broadcast.c
    plan/plan_gather.c plan/plan_halving.c plan/plan_hosts.c plan/plan_log.c plan/plan_reduce.c
    plan/schedule.c reduce/kernels.c reduce/kernels_baseline.c
    team/algorithm_defaults.c team/algorithm_table.c team/algorithms.c team/levels.c team/team.c
    team/team_direct.c team/team_gate.c team/team_inline.c team/team_levels.c team/team_open.c
    team/team_rules.c team/team_select.c team/team_shared.c team/team_staged.c)
list(TRANSFORM native_sources PREPEND backends/native/)

# The reduction loops are one source, compiled once per instruction set and selected at run time.
set_source_files_properties(backends/native/reduce/kernels_baseline.c
  PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND native_sources backends/native/reduce/kernels_avx2.c
    backends/native/reduce/kernels_avx512.c)
  set_source_files_properties(backends/native/reduce/kernels_avx2.c
    PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mf16c")
  set_source_files_properties(backends/native/reduce/kernels_avx512.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512")
endif()
