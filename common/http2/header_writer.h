// HeaderWriter: appends the fields of a header block to the output of a session.
#ifndef SLUICE_COMMON_HTTP2_HEADER_WRITER_H_
#define SLUICE_COMMON_HTTP2_HEADER_WRITER_H_

#include <cstdint>
#include <string_view>

#include "absl/types/span.h"
#include "common/buffer.h"
#include "common/http2/hpack_encoder.h"

namespace sluice::http2 {

// Lives while one block is written. Not thread-safe.
class HeaderWriter {
 public:
  HeaderWriter(HpackEncoder& encoder, common::Buffer& output) : encoder_(encoder), output_(output) {
    uint8_t* const begin = output_.Reserve(HpackEncoder::kBeginBound);
    output_.Commit(static_cast<size_t>(encoder_.Begin(begin) - begin));
  }

  // A field that repeats, in one or two bytes from its second use on.
  void Append(const HpackConstant& field) {
    uint8_t* const begin = output_.Reserve(field.bound());
    output_.Commit(static_cast<size_t>(encoder_.Append(field, begin) - begin));
  }
  // A field that does not repeat. `name` in lower case.
  void Append(std::string_view name, std::string_view value,
              HpackSecrecy secrecy = HpackSecrecy::kPublic) {
    uint8_t* const begin = output_.Reserve(HpackEncoder::LiteralBound(name, value));
    uint8_t* const end = HpackEncoder::AppendLiteral(name, value, secrecy, begin);
    output_.Commit(static_cast<size_t>(end - begin));
  }

 private:
  HpackEncoder& encoder_;
  common::Buffer& output_;
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HEADER_WRITER_H_
