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

// A member that is missing here does not compile: it also goes into ReadLimit, and needs another
// version (state_file.h).
void WriteLimit(const limits::LimitSpec& spec, FieldWriter* to) {
  const auto& [name, algorithm, rate, burst, debt, max_owed, sub_windows, utc_offset_ns, permits,
               hold_for_ns, mode, on_store_failure, sharing, charges, keys, hash_tag, max_wait_ns,
               min_keys, direct, reason, ends_at_ns, origin, defined_at] = spec;
  (void)defined_at;
  to->Text(name);
  to->Number(static_cast<uint64_t>(algorithm));
  WriteRate(rate, to);
  to->Optional(burst);
  to->Optional(debt);
  to->Optional(max_owed);
  to->Optional(sub_windows);
  to->Optional(utc_offset_ns);
  to->Optional(permits);
  to->Optional(hold_for_ns);
  to->Number(static_cast<uint64_t>(mode));
  to->Number(static_cast<uint64_t>(on_store_failure));
  to->Number(static_cast<uint64_t>(sharing));
  to->Number(charges.size());
  for (const std::string& charge : charges) to->Text(charge);
  to->Number(keys.size());
  for (const limits::KeyOverride& key : keys) WriteKey(key, to);
  to->Number(hash_tag.has_value() ? 1 : 0);
  if (hash_tag.has_value()) to->Text(*hash_tag);
  to->Optional(max_wait_ns);
  to->Optional(min_keys);
  to->Number(direct ? 1 : 0);
  to->Text(reason);
  to->Optional(ends_at_ns);
  to->Number(static_cast<uint64_t>(origin));
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
