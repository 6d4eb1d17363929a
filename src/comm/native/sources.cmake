# SPDX-License-Identifier: Apache-2.0
# The native backend's sources, relative to src/comm; included there.
list(APPEND native_sources
  native/copy.c
  native/kernels.c
  native/kernels_baseline.c
  native/local.c
  native/local_join.c
  native/segment.c
  native/segment_map.c
  native/team.c
  native/team_direct.c
  native/team_inline.c
  native/team_open.c
  native/team_rules.c
  native/team_select.c
  native/team_shared.c
  native/team_staged.c
  native/algorithm_table.c)
list(APPEND native_sources
  native/algorithms.c
  native/errors.c
  native/direct.c
  native/exec.c
  native/hosts.c
  native/join.c
  native/layout.c
  native/link.c
  native/link_shm.c
  native/link_sealed.c
  native/link_striped.c
  native/link_tcp.c
  native/match.c
  native/mesh.c
  native/message.c
  native/native.c
  native/plan_all_reduce.c
  native/plan_barrier.c
  native/plan_broadcast.c
  native/plan_gather.c
  native/plan_hosts.c
  native/plan_log.c
  native/plan_reduce.c
  native/message_pool.c
  native/schedule.c
  native/sleep.c
  native/mesh_streams.c)

# The reduction loops are one source, compiled once an instruction set and chosen at run time.
set_source_files_properties(native/kernels_baseline.c PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND native_sources native/kernels_avx2.c native/kernels_avx512.c)
  set_source_files_properties(native/kernels_avx2.c PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mf16c")
  set_source_files_properties(native/kernels_avx512.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512")
endif()
