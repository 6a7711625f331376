// Measures HPACK: the blocks of a gRPC call as the usual clients encode them, into our decoder and
// into nghttp2's inflater; and the blocks that we send.
//
// "timeout": each call has another grpc-timeout, as with a propagated deadline. A time is that of
// one block. Our decoder's includes the lookup of the method and the checks of names and values,
// nghttp2's is the decoding alone.
#include <benchmark/benchmark.h>
#include <nghttp2/nghttp2.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/http2/hpack_decoder.h"
#include "common/http2/hpack_encoder.h"
#include "common/http2/hpack_huffman.h"

namespace sluice::http2 {
namespace {

// How a client encodes, as far as decoding notices.
struct Client {
  const char* name;
  bool huffman;
  bool indexes_names_of_its_own;  // and not just those of the static table
  bool looks_up;                  // else it writes literals again in each block
  bool indexes_paths;
};
constexpr Client kClients[] = {
    {"grpc-go", true, true, true, true},  {"grpc-java", false, true, true, true},
    {"grpc++", false, true, true, true},  {"haproxy", false, false, false, true},
    {"nghttp2", true, true, true, false},
};

using Fields = std::vector<std::pair<std::string, std::string>>;

Fields FieldsOf(const Client& client, const std::string& timeout) {
  Fields fields = {{":method", "POST"},
                   {":scheme", "http"},
                   {":path", "/sluice.v1.RateLimiter/Acquire"},
                   {":authority", "limits.example.com:7200"},
                   {"content-type", "application/grpc"},
                   {"user-agent", std::string(client.name) + "/1.60.1"},
                   {"te", "trailers"}};
  if (std::string_view(client.name) != "grpc-go") {
    fields.emplace_back("grpc-accept-encoding", "identity, deflate, gzip");
  }
  if (!timeout.empty()) fields.emplace_back("grpc-timeout", timeout);
  return fields;
}

// Writes blocks as `client` does.
class Writer {
 public:
  explicit Writer(const Client& client) : client_(client) {}

  std::string Encode(const Fields& fields) {
    std::string block;
    for (const auto& field : fields) AppendField(field, &block);
    return block;
  }

 private:
  void AppendField(const std::pair<std::string, std::string>& field, std::string* block) {
    const auto& [name, value] = field;
    uint32_t name_index = 0;
    for (uint32_t i = 1; i <= kHpackStaticFields; ++i) {
      if (kHpackStaticTable[i].name != name) continue;
      if (kHpackStaticTable[i].value == value) return AppendInteger(0x80, 7, i, block);
      if (name_index == 0) name_index = i;
    }
    const bool own = name_index == 0;
    if (client_.looks_up) {
      for (uint32_t i = 0; i < table_.count(); ++i) {
        const auto& entry = table_.entry(i);
        if (table_.Name(entry) != name) continue;
        const uint32_t index = kHpackStaticFields + 1 + i;
        if (table_.Value(entry) == value) return AppendInteger(0x80, 7, index, block);
        if (name_index == 0) name_index = index;
      }
    }
    if ((own && !client_.indexes_names_of_its_own) || (name == ":path" && !client_.indexes_paths)) {
      AppendInteger(0, 4, name_index, block);
    } else {
      AppendInteger(0x40, 6, name_index, block);
      table_.Insert(name, value, 0);
    }
    if (name_index == 0) AppendString(name, block);
    AppendString(value, block);
  }
  void AppendString(const std::string& text, std::string* block) const {
    std::string code(HuffmanCodeSize(text), '\0');
    HuffmanEncode(text, reinterpret_cast<uint8_t*>(code.data()));
    const bool huffman = client_.huffman && code.size() < text.size();
    const std::string& bytes = huffman ? code : text;
    AppendInteger(huffman ? 0x80 : 0, 7, bytes.size(), block);
    *block += bytes;
  }
  static void AppendInteger(uint8_t bits, int prefix, size_t value, std::string* block) {
    const size_t full = (size_t{1} << prefix) - 1;
    if (value < full) {
      *block += static_cast<char>(bits | value);
      return;
    }
    *block += static_cast<char>(bits | full);
    for (value -= full; value >= 128; value >>= 7) *block += static_cast<char>(value | 0x80);
    *block += static_cast<char>(value);
  }

  const Client& client_;
  HpackTable table_;
};

// The blocks of one connection.
std::vector<std::string> BlocksOf(const Client& client, bool timeout) {
  constexpr int kBlocks = 20'000;
  Writer writer(client);
  std::vector<std::string> blocks;
  for (int i = 0; i < kBlocks; ++i) {
    const std::string value = timeout ? std::to_string(4'900'000 + i * 37 % 99'991) + "u" : "";
    blocks.push_back(writer.Encode(FieldsOf(client, value)));
  }
  return blocks;
}

// Recognizes and checks the fields of a request, as a server does.
class RequestInterpreter : public HpackInterpreter {
 public:
  enum Known : uint64_t {
    kInvalid = 1,
    kOther,
    kMethod,
    kScheme,
    kPath,
    kAuthority,
    kContentType,
    kUserAgent,
    kTe,
    kTimeout,
    kAcceptEncoding,
  };

  uint64_t Interpret(std::string_view name, std::string_view value, uint64_t like) const override {
    const uint64_t known = like != 0 ? like & 0xff : KnownName(name);
    for (const char c : value) {
      if (static_cast<uint8_t>(c) < ' ' || c == 0x7f) return kInvalid;
    }
    return known | uint64_t{known == kPath ? value.size() : 0} << 8;
  }

 private:
  static uint64_t KnownName(std::string_view name) {
    constexpr std::pair<std::string_view, Known> kNames[] = {
        {":method", kMethod},
        {":scheme", kScheme},
        {":path", kPath},
        {":authority", kAuthority},
        {"content-type", kContentType},
        {"user-agent", kUserAgent},
        {"te", kTe},
        {"grpc-timeout", kTimeout},
        {"grpc-accept-encoding", kAcceptEncoding}};
    for (const auto& [known, id] : kNames) {
      if (known == name) return id;
    }
    for (const char c : name) {
      if (c <= ' ' || c == 0x7f || (c >= 'A' && c <= 'Z')) return kInvalid;
    }
    return kOther;
  }
};

absl::Span<const uint8_t> BytesOf(const std::string& block) {
  return {reinterpret_cast<const uint8_t*>(block.data()), block.size()};
}

// What a server does with a block.
class OurServer {
 public:
  uint64_t Take(const std::string& block) {
    uint64_t seen = 0;
    uint64_t list_bytes = 0;
    uint64_t timeout = 0;
    const HpackError error = decoder_.Decode(BytesOf(block), [&](const HpackField& field) {
      list_bytes += field.bytes;
      if (list_bytes > kMaxHpackFieldBytes) return false;
      const uint64_t known = field.meaning & 0xff;
      if (known == RequestInterpreter::kInvalid) return false;
      if (known == RequestInterpreter::kTimeout) timeout = field.value.size();
      seen |= uint64_t{1} << known;
      return true;
    });
    if (error != HpackError::kNone) std::abort();
    return seen + timeout;
  }

 private:
  static const HpackVocabulary& Vocabulary() {
    static const RequestInterpreter interpreter;
    static const HpackVocabulary vocabulary(interpreter);
    return vocabulary;
  }

  HpackDecoder decoder_{Vocabulary()};
};

class Nghttp2Server {
 public:
  Nghttp2Server() { nghttp2_hd_inflate_new(&inflater_); }
  ~Nghttp2Server() { nghttp2_hd_inflate_del(inflater_); }
  Nghttp2Server(const Nghttp2Server&) = delete;
  Nghttp2Server& operator=(const Nghttp2Server&) = delete;

  uint64_t Take(const std::string& block) {
    const auto* at = reinterpret_cast<const uint8_t*>(block.data());
    size_t left = block.size();
    uint64_t sum = 0;
    for (;;) {
      nghttp2_nv field;
      int flags = 0;
      const ssize_t used = nghttp2_hd_inflate_hd2(inflater_, &field, &flags, at, left, 1);
      if (used < 0) std::abort();
      at += used;
      left -= used;
      if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) sum += field.namelen + field.valuelen;
      if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) break;
    }
    nghttp2_hd_inflate_end_headers(inflater_);
    return sum;
  }

 private:
  nghttp2_hd_inflater* inflater_ = nullptr;
};

template <typename Server>
void BM_Decode(benchmark::State& state, const Client& client, bool timeout) {
  const std::vector<std::string> blocks = BlocksOf(client, timeout);
  auto server = std::make_unique<Server>();
  size_t next = 0;
  for (auto _ : state) {
    if (next == blocks.size()) {  // the next connection
      state.PauseTiming();
      server = std::make_unique<Server>();
      next = 0;
      state.ResumeTiming();
    }
    benchmark::DoNotOptimize(server->Take(blocks[next++]));
  }
  size_t bytes = 0;
  for (const std::string& block : blocks) bytes += block.size();
  state.counters["bytes"] = static_cast<double>(bytes) / static_cast<double>(blocks.size());
}

// The headers and the trailers of an answer.
void BM_EncodeAnswer(benchmark::State& state) {
  const HpackConstant status(":status", "200");
  const HpackConstant content_type("content-type", "application/grpc");
  const HpackConstant grpc_status("grpc-status", "0");
  HpackEncoder encoder;
  uint8_t block[256];
  for (auto _ : state) {
    uint8_t* out = encoder.Begin(block);
    out = encoder.Append(status, out);
    out = encoder.Append(content_type, out);
    benchmark::DoNotOptimize(*out);
    out = encoder.Append(grpc_status, encoder.Begin(out));
    benchmark::DoNotOptimize(*out);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_EncodeAnswer);

// The headers of a client's call.
void BM_EncodeRequest(benchmark::State& state) {
  const HpackConstant fields[] = {{":method", "POST"},
                                  {":scheme", "http"},
                                  {":path", "/sluice.v1.RateLimiter/Acquire"},
                                  {":authority", "limits.example.com:7200"},
                                  {"content-type", "application/grpc"},
                                  {"te", "trailers"},
                                  {"user-agent", "sluice/0.1"},
                                  {"authorization", "Bearer 0123456789abcdef"}};
  const HpackConstant timeout("grpc-timeout", "");
  HpackEncoder encoder;
  uint8_t block[512];
  for (auto _ : state) {
    uint8_t* out = encoder.Begin(block);
    for (const HpackConstant& field : fields) out = encoder.Append(field, out);
    out = encoder.AppendWithNameOf(timeout, "4987654u", out);
    benchmark::DoNotOptimize(*out);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(BM_EncodeRequest);

void RegisterDecoding() {
  for (const Client& client : kClients) {
    for (const bool timeout : {false, true}) {
      const std::string what = std::string(client.name) + (timeout ? "/timeout" : "");
      benchmark::RegisterBenchmark(("BM_Decode/" + what).c_str(), BM_Decode<OurServer>, client,
                                   timeout);
      benchmark::RegisterBenchmark(("BM_DecodeNghttp2/" + what).c_str(), BM_Decode<Nghttp2Server>,
                                   client, timeout);
    }
  }
}

}  // namespace
}  // namespace sluice::http2

int main(int argc, char** argv) {
  sluice::http2::RegisterDecoding();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
