# Writes a header with the text of each file as embedded::NAME, and their count:
# cmake -DOUT=... -DFILES=... -P embed_scripts.cmake
list(LENGTH FILES count)
set(header "// Written by embed_scripts.cmake from the *.lua files.\n#pragma once\n")
string(APPEND header "namespace sluice::store::redis::embedded {\n")
string(APPEND header "inline constexpr int kFiles = ${count};\n")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME_WE)
  file(READ ${file} text)
  # A string literal may have 64 KB; ours stay below.
  string(APPEND header "inline constexpr char ${name}[] = R\"lua(${text})lua\";\n")
endforeach()
string(APPEND header "}  // namespace sluice::store::redis::embedded\n")
file(WRITE ${OUT} "${header}")
