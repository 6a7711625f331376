# Writes a header with the text of each script: cmake -DOUT=... -DDIR=... -P embed_scripts.cmake
set(names prelude mark acquire_token_bucket buckets token_bucket sliding_log sliding_window
  fixed_window load_buckets acquire query refund reset convert close exchange floors promise
  heartbeat report)
set(constants kPrelude kMark kAcquireTokenBucket kBuckets kTokenBucket kSlidingLog kSlidingWindow
  kFixedWindow kLoadBuckets kAcquire kQuery kRefund kReset kConvert kClose kExchange kFloors
  kPromise kHeartbeat kReport)
set(header "// Written by embed_scripts.cmake from scripts/*.lua.\n#pragma once\n")
string(APPEND header "namespace sluice::store::redis::embedded {\n")
foreach(name constant IN ZIP_LISTS names constants)
  file(READ ${DIR}/${name}.lua text)
  # A string literal may have 64 KB; ours stay below.
  string(APPEND header "inline constexpr char ${constant}[] = R\"lua(${text})lua\";\n")
endforeach()
string(APPEND header "}  // namespace sluice::store::redis::embedded\n")
file(WRITE ${OUT} "${header}")
