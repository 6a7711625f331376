#include "server/store/redis/wire/hash_slot.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sluice::store::redis {
namespace {

constexpr std::array<uint16_t, 256> MakeTable() {
  constexpr uint16_t kPolynomial = 0x1021;  // x^16 + x^12 + x^5 + 1
  std::array<uint16_t, 256> table{};
  for (size_t byte = 0; byte < table.size(); ++byte) {
    auto rest = static_cast<uint16_t>(byte << 8);
    for (int bit = 0; bit < 8; ++bit) {
      const bool carry = (rest & 0x8000) != 0;
      rest = static_cast<uint16_t>(rest << 1);
      if (carry) rest ^= kPolynomial;
    }
    table[byte] = rest;
  }
  return table;
}

uint16_t Crc16(std::string_view bytes) {
  static constexpr std::array<uint16_t, 256> kTable = MakeTable();
  uint16_t crc = 0;
  for (const char c : bytes) {
    crc = static_cast<uint16_t>(crc << 8) ^ kTable[(crc >> 8) ^ static_cast<uint8_t>(c)];
  }
  return crc;
}

// "?" stands for a host name that is not configured.
bool Unnamed(std::string_view host) { return host.empty() || host == "?"; }

absl::Status NotSlots(const char* what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the answer to CLUSTER SLOTS is of another form: ", what));
}

}  // namespace

std::string_view HashTagOf(std::string_view key) {
  const size_t open = key.find('{');
  if (open == key.npos) return {};
  const size_t close = key.find('}', open + 1);
  if (close == key.npos) return {};
  return key.substr(open + 1, close - open - 1);
}

uint16_t SlotOf(std::string_view key) {
  const std::string_view tag = HashTagOf(key);
  return Crc16(tag.empty() ? key : tag) % kSlots;
}

const std::string& TagOfSlot(uint16_t slot) {
  static const std::vector<std::string>& tags = *[] {
    auto* const all = new std::vector<std::string>(kSlots);
    size_t missing = kSlots;
    for (uint32_t number = 0; missing > 0; ++number) {
      std::string tag = absl::StrCat(number);
      std::string& of_slot = (*all)[SlotOf(tag)];
      if (!of_slot.empty()) continue;
      of_slot = std::move(tag);
      --missing;
    }
    return all;
  }();
  return tags[slot];
}

absl::StatusOr<SlotMap> SlotMap::FromReply(const Reply& reply, const net::Address& asked) {
  if (reply.type != Reply::Type::kArray) return NotSlots("no array");
  SlotMap map;
  for (const Reply& range : reply.elements) {
    if (range.type != Reply::Type::kArray || range.elements.size() < 3) {
      return NotSlots("a range has fewer than three elements");
    }
    const Reply& first = range.elements[0];
    const Reply& last = range.elements[1];
    const Reply& primary = range.elements[2];
    if (first.type != Reply::Type::kInteger || last.type != Reply::Type::kInteger ||
        first.integer < 0 || last.integer < first.integer ||
        last.integer >= static_cast<int64_t>(kSlots)) {
      return NotSlots("a range is not between 0 and 16383");
    }
    if (primary.type != Reply::Type::kArray || primary.elements.size() < 2 ||
        primary.elements[1].type != Reply::Type::kInteger || primary.elements[1].integer < 0 ||
        primary.elements[1].integer > std::numeric_limits<uint16_t>::max()) {
      return NotSlots("a primary has no port");
    }
    net::Address address;
    address.host = Unnamed(primary.elements[0].text) ? asked.host : primary.elements[0].text;
    address.port = static_cast<uint16_t>(primary.elements[1].integer);
    if (address.port == 0) continue;  // not known yet
    const uint16_t place = map.PlaceOf(address);
    // Replicas follow the primary.
    if (range.elements.size() > 3) map.replicated_[place] = true;
    std::fill(map.owners_.begin() + first.integer, map.owners_.begin() + last.integer + 1, place);
  }
  return map;
}

void SlotMap::Move(uint16_t slot, const net::Address& to) { owners_[slot] = PlaceOf(to); }

size_t SlotMap::served() const {
  return kSlots -
         static_cast<size_t>(std::count(owners_.begin(), owners_.end(), uint16_t{kNoOwner}));
}

uint16_t SlotMap::PlaceOf(const net::Address& address) {
  size_t place = 0;
  while (place < primaries_.size() && !(primaries_[place] == address)) ++place;
  if (place == primaries_.size()) {
    primaries_.push_back(address);
    replicated_.push_back(false);
  }
  return static_cast<uint16_t>(place);
}

std::optional<Redirect> RedirectOf(const Reply& reply, const net::Address& asked) {
  const bool ask = reply.HasCode("ASK");
  if (!ask && !reply.HasCode("MOVED")) return std::nullopt;
  const std::vector<absl::string_view> words = absl::StrSplit(reply.text, ' ');
  uint32_t slot = 0;
  uint32_t port = 0;
  if (words.size() != 3 || !absl::SimpleAtoi(words[1], &slot) || slot >= kSlots) {
    return std::nullopt;
  }
  // An IPv6 address comes without brackets.
  const size_t colon = words[2].rfind(':');
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(words[2].substr(colon + 1), &port) ||
      port == 0 || port > std::numeric_limits<uint16_t>::max()) {
    return std::nullopt;
  }
  Redirect redirect;
  redirect.ask = ask;
  redirect.slot = static_cast<uint16_t>(slot);
  const std::string host(words[2].substr(0, colon));
  redirect.to.host = Unnamed(host) ? asked.host : host;
  redirect.to.port = static_cast<uint16_t>(port);
  return redirect;
}

}  // namespace sluice::store::redis
