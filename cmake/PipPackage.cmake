# SPDX-License-Identifier: Apache-2.0
# pip_package_folder(NAME OUT): the folder of an installed Python package ("nvidia.cudnn"), as the
# Python in PATH finds it; empty without one.
function(pip_package_folder name out)
  find_program(LOCKSTEP_PYTHON NAMES python3 python)
  mark_as_advanced(LOCKSTEP_PYTHON)
  set(folder)
  if(LOCKSTEP_PYTHON)
    execute_process(COMMAND ${LOCKSTEP_PYTHON} -c "import ${name}; print(${name}.__path__[0])"
                    OUTPUT_VARIABLE folder OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  set(${out} "${folder}" PARENT_SCOPE)
endfunction()
