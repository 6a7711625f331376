#include "server/state/saved_limit.h"

#include <cstdint>
#include <optional>
#include <string>

namespace sluice::state {
namespace {

void WriteRate(const algorithm::Rate& rate, FieldWriter* to) {
  to->Number(rate.permits);
  to->Signed(rate.period_ns);
}

algorithm::Rate ReadRate(FieldReader* from) {
  algorithm::Rate rate;
  rate.permits = from->Number();
  rate.period_ns = from->Signed();
  return rate;
}

void WriteKey(const limits::KeyOverride& key, FieldWriter* to) {
  to->Text(key.key);
  to->Number(key.rate.has_value() ? 1 : 0);
  if (key.rate.has_value()) WriteRate(*key.rate, to);
  to->Optional(key.burst);
  to->Optional(key.debt);
  to->Optional(key.permits);
}

limits::KeyOverride ReadKey(FieldReader* from) {
  limits::KeyOverride key;
  key.key = from->Text();
  if (from->Flag()) key.rate = ReadRate(from);
  key.burst = from->Optional<uint64_t>();
  key.debt = from->Optional<uint64_t>();
  key.permits = from->Optional<uint64_t>();
  return key;
}

}  // namespace

void WriteLimit(const limits::LimitSpec& spec, FieldWriter* to) {
  to->Text(spec.name);
  to->Number(static_cast<uint64_t>(spec.algorithm));
  WriteRate(spec.rate, to);
  to->Optional(spec.burst);
  to->Optional(spec.debt);
  to->Optional(spec.max_owed);
  to->Optional(spec.sub_windows);
  to->Optional(spec.utc_offset_ns);
  to->Optional(spec.permits);
  to->Optional(spec.hold_for_ns);
  to->Number(static_cast<uint64_t>(spec.mode));
  to->Number(static_cast<uint64_t>(spec.on_store_failure));
  to->Number(static_cast<uint64_t>(spec.sharing));
  to->Number(spec.charges.size());
  for (const std::string& charge : spec.charges) to->Text(charge);
  to->Number(spec.keys.size());
  for (const limits::KeyOverride& key : spec.keys) WriteKey(key, to);
  to->Number(spec.hash_tag.has_value() ? 1 : 0);
  if (spec.hash_tag.has_value()) to->Text(*spec.hash_tag);
  to->Optional(spec.max_wait_ns);
  to->Optional(spec.min_keys);
  to->Number(spec.direct ? 1 : 0);
  to->Text(spec.reason);
  to->Optional(spec.ends_at_ns);
  to->Number(static_cast<uint64_t>(spec.origin));
}

limits::LimitSpec ReadLimit(FieldReader* from) {
  limits::LimitSpec spec;
  spec.name = from->Text();
  spec.algorithm = from->EnumUpTo(algorithm::kLastKind);
  spec.rate = ReadRate(from);
  spec.burst = from->Optional<uint64_t>();
  spec.debt = from->Optional<uint64_t>();
  spec.max_owed = from->Optional<uint64_t>();
  spec.sub_windows = from->Optional<uint32_t>();
  spec.utc_offset_ns = from->Optional<int64_t>();
  spec.permits = from->Optional<uint64_t>();
  spec.hold_for_ns = from->Optional<int64_t>();
  spec.mode = from->EnumUpTo(limits::Mode::kShadow);
  spec.on_store_failure = from->EnumUpTo(limits::OnStoreFailure::kSplit);
  spec.sharing = from->EnumUpTo(store::Sharing::kRelaxed);
  for (size_t i = from->Count(); i > 0; --i) spec.charges.emplace_back(from->Text());
  for (size_t i = from->Count(); i > 0; --i) spec.keys.push_back(ReadKey(from));
  if (from->Flag()) spec.hash_tag.emplace(from->Text());
  spec.max_wait_ns = from->Optional<int64_t>();
  spec.min_keys = from->Optional<uint64_t>();
  spec.direct = from->Flag();
  spec.reason = from->Text();
  spec.ends_at_ns = from->Optional<int64_t>();
  spec.origin = from->EnumUpTo(limits::Origin::kEnvoy);
  return spec;
}

}  // namespace sluice::state
