// nghttp2's HPACK beside ours: what each decodes, and the first difference.
#ifndef SLUICE_TESTS_SUPPORT_HPACK_ORACLE_H_
#define SLUICE_TESTS_SUPPORT_HPACK_ORACLE_H_

#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http2/hpack_decoder.h"

namespace sluice::testing {

using HpackFields = std::vector<std::pair<std::string, std::string>>;

inline absl::Span<const uint8_t> BytesOf(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// The meaning that tests give a field: hashes of the name and of the value.
class HashInterpreter : public http2::HpackInterpreter {
 public:
  static uint64_t MeaningOf(std::string_view name, std::string_view value) {
    const std::hash<std::string_view> hash;
    return uint64_t{NameHash(name)} << 32 | static_cast<uint32_t>(hash(value));
  }
  uint64_t Interpret(std::string_view name, std::string_view value, uint64_t like) const override {
    if (like != 0 && like >> 32 != NameHash(name)) __builtin_trap();  // of another name
    return MeaningOf(name, value);
  }

 private:
  static uint32_t NameHash(std::string_view name) {
    return static_cast<uint32_t>(std::hash<std::string_view>()(name)) | 1;
  }
};

inline const http2::HpackVocabulary& HashVocabulary() {
  static const HashInterpreter interpreter;
  static const http2::HpackVocabulary vocabulary(interpreter);
  return vocabulary;
}

// A decoder of ours that keeps what it decodes.
class OurDecoder {
 public:
  // Takes at most `most` fields.
  http2::HpackError Decode(std::string_view block, HpackFields* fields, size_t most = SIZE_MAX) {
    return decoder_.Decode(BytesOf(block), [&](const http2::HpackField& field) {
      const size_t bytes = field.name.size() + field.value.size() + 32;
      const bool whole = field.bytes == bytes;
      if (whole && field.meaning != HashInterpreter::MeaningOf(field.name, field.value)) {
        __builtin_trap();
      }
      fields->emplace_back(field.name, field.value);
      return fields->size() < most;
    });
  }
  // The dynamic table's entries, the newest first.
  HpackFields Table() const {
    const http2::HpackTable& table = decoder_.table();
    HpackFields entries;
    for (uint32_t i = 0; i < table.count(); ++i) {
      const auto& entry = table.entry(i);
      entries.emplace_back(table.Name(entry), table.Value(entry));
      if (entry.meaning != HashInterpreter::MeaningOf(table.Name(entry), table.Value(entry))) {
        __builtin_trap();
      }
    }
    return entries;
  }
  const http2::HpackDecoder& decoder() const { return decoder_; }

 private:
  http2::HpackDecoder decoder_{HashVocabulary()};
};

// nghttp2's.
class OracleInflater {
 public:
  OracleInflater() { nghttp2_hd_inflate_new(&inflater_); }
  ~OracleInflater() { nghttp2_hd_inflate_del(inflater_); }
  OracleInflater(const OracleInflater&) = delete;
  OracleInflater& operator=(const OracleInflater&) = delete;

  // nullopt: an error.
  std::optional<HpackFields> Decode(std::string_view block) {
    HpackFields fields;
    auto* at = reinterpret_cast<const uint8_t*>(block.data());
    size_t left = block.size();
    for (;;) {
      nghttp2_nv field;
      int flags = 0;
      const ssize_t used = nghttp2_hd_inflate_hd2(inflater_, &field, &flags, at, left, 1);
      if (used < 0) return std::nullopt;
      at += used;
      left -= used;
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) fields.push_back(Pair(field));
      if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
        nghttp2_hd_inflate_end_headers(inflater_);
        return fields;
      }
    }
  }
  HpackFields Table() {
    HpackFields entries;
    const size_t count = nghttp2_hd_inflate_get_num_table_entries(inflater_);
    for (size_t index = http2::kHpackStaticFields + 1; index <= count; ++index) {
      entries.push_back(Pair(*nghttp2_hd_inflate_get_table_entry(inflater_, index)));
    }
    return entries;
  }
  size_t table_bytes() { return nghttp2_hd_inflate_get_dynamic_table_size(inflater_); }
  void SetMaxTableBytes(size_t bytes) { nghttp2_hd_inflate_change_table_size(inflater_, bytes); }

 private:
  static std::pair<std::string, std::string> Pair(const nghttp2_nv& field) {
    return {std::string(reinterpret_cast<const char*>(field.name), field.namelen),
            std::string(reinterpret_cast<const char*>(field.value), field.valuelen)};
  }

  nghttp2_hd_inflater* inflater_ = nullptr;
};

class OracleDeflater {
 public:
  OracleDeflater() { nghttp2_hd_deflate_new(&deflater_, http2::kHpackTableBytes); }
  ~OracleDeflater() { nghttp2_hd_deflate_del(deflater_); }
  OracleDeflater(const OracleDeflater&) = delete;
  OracleDeflater& operator=(const OracleDeflater&) = delete;

  // `flags`: NGHTTP2_NV_FLAG_ of each field.
  std::string Encode(const HpackFields& fields, const std::vector<uint8_t>& flags) {
    std::vector<nghttp2_nv> list;
    for (size_t i = 0; i < fields.size(); ++i) {
      const auto bytes = [](const std::string& text) {
        return reinterpret_cast<uint8_t*>(const_cast<char*>(text.data()));
      };
      const auto& [name, value] = fields[i];
      list.push_back({bytes(name), bytes(value), name.size(), value.size(), flags[i]});
    }
    std::string block(nghttp2_hd_deflate_bound(deflater_, list.data(), list.size()), '\0');
    const ssize_t size = nghttp2_hd_deflate_hd(deflater_, reinterpret_cast<uint8_t*>(block.data()),
                                               block.size(), list.data(), list.size());
    block.resize(size < 0 ? 0 : size);
    return block;
  }
  void SetMaxTableBytes(size_t bytes) { nghttp2_hd_deflate_change_table_size(deflater_, bytes); }

 private:
  nghttp2_hd_deflater* deflater_ = nullptr;
};

// What a decoder may hold: 128 entries of 16 bytes, their text, and 8 literals.
inline constexpr size_t kMostHpackMemory = 128 * 16 + 5120 + 8 * 200;

// Decodes blocks of one connection with both.
class HpackPair {
 public:
  // Describes the first difference; empty: there is none. `most`: the fields that ours reports.
  std::string Compare(std::string_view block, size_t most = SIZE_MAX) {
    HpackFields fields;
    error_ = ours_.Decode(block, &fields, most);
    std::optional<HpackFields> expected = oracle_.Decode(block);
    if ((error_ == http2::HpackError::kNone) != expected.has_value()) {
      // RFC 7541, 4.2: at most two size updates. nghttp2 takes any number.
      if (error_ == http2::HpackError::kSizeUpdateLate && StartsWithThreeUpdates(block)) return "";
      return expected.has_value() ? "only ours fails: " + std::string(HpackErrorText(error_))
                                  : "only nghttp2 fails";
    }
    if (!expected.has_value()) return "";
    if (expected->size() > most) expected->resize(most);
    if (fields != *expected) return "the fields differ";
    if (ours_.Table() != oracle_.Table()) return "the tables differ";
    if (ours_.decoder().table().bytes() != oracle_.table_bytes()) return "the table sizes differ";
    if (ours_.decoder().memory() > kMostHpackMemory) return "too much memory";
    return "";
  }
  // The last block's error; after one, neither decoder can be used.
  http2::HpackError error() const { return error_; }

 private:
  static bool StartsWithThreeUpdates(std::string_view block) {
    size_t at = 0;
    for (int i = 0; i < 3; ++i) {
      if (at >= block.size() || (block[at] & 0xe0) != 0x20) return false;
      if ((block[at++] & 0x1f) != 0x1f) continue;
      while (at < block.size() && (block[at++] & 0x80) != 0) continue;
    }
    return true;
  }

  OurDecoder ours_;
  OracleInflater oracle_;
  http2::HpackError error_ = http2::HpackError::kNone;
};

}  // namespace sluice::testing

#endif  // SLUICE_TESTS_SUPPORT_HPACK_ORACLE_H_
