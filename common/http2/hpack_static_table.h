// The static table of HPACK (RFC 7541, appendix A).
#ifndef SLUICE_COMMON_HTTP2_HPACK_STATIC_TABLE_H_
#define SLUICE_COMMON_HTTP2_HPACK_STATIC_TABLE_H_

#include <cstdint>
#include <string_view>

namespace sluice::http2 {

inline constexpr uint32_t kHpackStaticFields = 61;

struct HpackStaticField {
  std::string_view name;
  std::string_view value;
};

// Indices begin at 1; 0 is unused. Fields of one name follow each other.
inline constexpr HpackStaticField kHpackStaticTable[kHpackStaticFields + 1] = {
    {},
    {":authority", ""},
    {":method", "GET"},
    {":method", "POST"},
    {":path", "/"},
    {":path", "/index.html"},
    {":scheme", "http"},
    {":scheme", "https"},
    {":status", "200"},
    {":status", "204"},
    {":status", "206"},
    {":status", "304"},
    {":status", "400"},
    {":status", "404"},
    {":status", "500"},
    {"accept-charset", ""},
    {"accept-encoding", "gzip, deflate"},
    {"accept-language", ""},
    {"accept-ranges", ""},
    {"accept", ""},
    {"access-control-allow-origin", ""},
    {"age", ""},
    {"allow", ""},
    {"authorization", ""},
    {"cache-control", ""},
    {"content-disposition", ""},
    {"content-encoding", ""},
    {"content-language", ""},
    {"content-length", ""},
    {"content-location", ""},
    {"content-range", ""},
    {"content-type", ""},
    {"cookie", ""},
    {"date", ""},
    {"etag", ""},
    {"expect", ""},
    {"expires", ""},
    {"from", ""},
    {"host", ""},
    {"if-match", ""},
    {"if-modified-since", ""},
    {"if-none-match", ""},
    {"if-range", ""},
    {"if-unmodified-since", ""},
    {"last-modified", ""},
    {"link", ""},
    {"location", ""},
    {"max-forwards", ""},
    {"proxy-authenticate", ""},
    {"proxy-authorization", ""},
    {"range", ""},
    {"referer", ""},
    {"refresh", ""},
    {"retry-after", ""},
    {"server", ""},
    {"set-cookie", ""},
    {"strict-transport-security", ""},
    {"transfer-encoding", ""},
    {"user-agent", ""},
    {"vary", ""},
    {"via", ""},
    {"www-authenticate", ""},
};

}  // namespace sluice::http2

#endif  // SLUICE_COMMON_HTTP2_HPACK_STATIC_TABLE_H_
