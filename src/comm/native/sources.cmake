# SPDX-License-Identifier: Apache-2.0
# The native backend's sources, relative to src/comm; included there.
foreach(name algorithm_defaults algorithm_table algorithms copy direct errors exec hosts join
    kernels kernels_baseline layout levels link link_sealed link_shm link_striped link_tcp
    local local_join match mesh mesh_streams message message_pool native native_groups
    plan_all_reduce plan_barrier plan_broadcast plan_gather plan_halving plan_hosts plan_log
    plan_reduce schedule segment segment_map sleep team team_direct team_gate team_inline
    team_levels team_open team_rules team_select team_shared team_staged)
  list(APPEND native_sources native/${name}.c)
endforeach()

# The reduction loops are one source, compiled once per instruction set and selected at run time.
set_source_files_properties(native/kernels_baseline.c PROPERTIES COMPILE_OPTIONS "-O3")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  list(APPEND native_sources native/kernels_avx2.c native/kernels_avx512.c)
  set_source_files_properties(native/kernels_avx2.c PROPERTIES COMPILE_OPTIONS "-O3;-mavx2;-mf16c")
  set_source_files_properties(native/kernels_avx512.c PROPERTIES COMPILE_OPTIONS
    "-O3;-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mf16c;-mprefer-vector-width=512")
endif()
