#include "server/envoy/matcher.h"

#include <openssl/evp.h>

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/strings.h"
#include "server/envoy/limit_specs.h"
#include "server/limits/limit_table.h"

namespace sluice::envoy {

using common::ToAbsl;
using common::bounds::kMaxDescriptorBytes;
using common::bounds::kMaxDescriptorDepth;
using common::bounds::kMaxKeyBytes;

// A configured descriptor.
struct Matcher::Node {
  // What stands in a bucket's key for the value of an entry that lands here.
  enum class InKey : uint8_t { kValue, kNothing };

  std::string key;
  std::string text;  // KEY_VALUE, or KEY
  InKey in_key = InKey::kValue;
  bool has_wildcard = false;
  bool share_threshold = false;
  bool value_to_metric = false;
  bool detailed_metric = false;
  const MatchedLimit* limit = nullptr;
  std::unique_ptr<Level> children;  // null: none
};

class Matcher::Level {
 public:
  std::string domain;  // of a domain's first level
  std::vector<std::unique_ptr<Node>> nodes;
  absl::flat_hash_map<absl::string_view, const Node*> by_text;  // views into the nodes
  Wildcards wildcards;
  std::vector<const Node*> of_wildcard;  // by the number of the pattern

  // Null: there is none.
  const Node* FindText(std::string_view text) const {
    const auto it = by_text.find(ToAbsl(text));
    return it == by_text.end() ? nullptr : it->second;
  }
  // Where no text is exactly KEY_VALUE: the node of the wildcard that was found, else that of KEY.
  const Node* AfterSearch(uint32_t wildcard, std::string_view key) const {
    return wildcard != Wildcards::kNone ? of_wildcard[wildcard] : FindText(key);
  }
};

namespace {

// Whether an entry with `key` belongs to a descriptor with this key, and not by the accident that
// "a_b" + "c" and "a" + "b_c" are put together to the same text.
bool SameKey(std::string_view key, std::string_view configured) {
  return common::SameBytes(key, configured);
}

// ---- The bucket's key ----
//
// The values that the descriptors leave open, with | between them and \ before each | and \ of
// their own; empty if none is open. A key that begins with \e or \h has another form: \e: all keys
// and values; \h: the SHA-256 of a key that would be too long.

class KeyWriter {
 public:
  explicit KeyWriter(BucketKey* key) : key_(key) { key_->size = 0; }

  void Mark(char form) {
    const char mark[] = {'\\', form};
    Raw({mark, 2});
  }
  // The next value; `first`: of the key.
  void Value(std::string_view value, bool first) {
    if (!first) Raw("|");
    if (value.find('|') == value.npos && value.find('\\') == value.npos) {
      Raw(value);
      return;
    }
    // In pieces: a value may have half a megabyte.
    char piece[256];
    size_t size = 0;
    for (const char c : value) {
      if (c == '|' || c == '\\') piece[size++] = '\\';
      piece[size++] = c;
      if (size + 2 <= sizeof(piece)) continue;
      Raw({piece, size});
      size = 0;
      if (!fits_ && whole_ == nullptr) return;
    }
    Raw({piece, size});
  }
  // False: the key is too long; `whole` has it, if it is not null.
  bool fits() const { return fits_; }
  void AlsoTo(std::string* whole) { whole_ = whole; }

 private:
  void Raw(std::string_view text) {
    if (whole_ != nullptr) whole_->append(text);
    if (text.size() > kMaxKeyBytes - key_->size) fits_ = false;
    if (!fits_) return;
    text.copy(key_->bytes + key_->size, text.size());
    key_->size += text.size();
  }

  BucketKey* const key_;
  std::string* whole_ = nullptr;
  bool fits_ = true;
};

// write(KeyWriter*) writes a key; it is called again if the key turns out to be too long.
template <typename Write>
void WriteOrHash(BucketKey* key, Write write) {
  KeyWriter writer(key);
  write(&writer);
  if (writer.fits()) return;
  static thread_local std::string whole;
  whole.clear();
  KeyWriter again(key);
  again.AlsoTo(&whole);
  write(&again);
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  EVP_Digest(whole.data(), whole.size(), digest, &size, EVP_sha256(), nullptr);
  const std::string hash =
      absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  KeyWriter hashed(key);
  hashed.Mark('h');
  hashed.Value(hash, true);
  // A caller can make one request large; its memory is not kept for ever.
  if (whole.capacity() > (size_t{64} << 10)) std::string().swap(whole);
}

}  // namespace

// ---- Compilation ----

class Matcher::Compiler {
 public:
  Compiler(const DescriptorTree& tree, const Overrides& overrides, Matcher* matcher)
      : tree_(tree), overrides_(overrides), matcher_(*matcher) {}

  void Run() {
    for (const Domain& domain : tree_.domains) {
      auto it = matcher_.domains_.find(ToAbsl(domain.name));
      if (it == matcher_.domains_.end()) {
        auto level = std::make_unique<Level>();
        level->domain = domain.name;
        const absl::string_view name = level->domain;
        it = matcher_.domains_.emplace(name, std::move(level)).first;
      }
      domain_ = &domain.name;
      LimitPath path(domain.name);
      Add(domain.descriptors, domain.name, path, false, it->second.get());
    }
    // Domains may be merged: a level is complete only now.
    for (auto& [name, level] : matcher_.domains_) Finish(level.get());
  }

 private:
  void Add(absl::Span<const Descriptor> descriptors, const std::string& metric_of_parent,
           const LimitPath& path_of_parent, bool values_in_metric, Level* level) {
    for (const Descriptor& one : descriptors) {
      auto node = std::make_unique<Node>();
      node->key = one.key;
      node->text = one.value.empty() ? one.key : absl::StrCat(one.key, "_", one.value);
      node->has_wildcard = node->text.find('*') != node->text.npos;
      node->share_threshold = one.share_threshold;
      node->value_to_metric = one.value_to_metric;
      node->detailed_metric = one.detailed_metric;
      const bool fixed = !one.value.empty() && !node->has_wildcard;
      node->in_key = fixed || one.share_threshold ? Node::InKey::kNothing : Node::InKey::kValue;
      const std::string metric = absl::StrCat(metric_of_parent, ".", node->text);
      const LimitPath path = path_of_parent.Child(one.key, one.value);
      const bool values = values_in_metric || one.value_to_metric;
      if (one.rate_limit.has_value()) {
        node->limit = AddLimit(one, *one.rate_limit, metric, path, values);
      }
      if (!one.descriptors.empty()) {
        node->children = std::make_unique<Level>();
        Add(one.descriptors, metric, path, values, node->children.get());
        Finish(node->children.get());
      }
      level->nodes.push_back(std::move(node));
    }
  }

  const MatchedLimit* AddLimit(const Descriptor& descriptor, const RateLimit& configured,
                               const std::string& metric, const LimitPath& path,
                               bool values_in_metric) {
    auto limit = std::make_unique<MatchedLimit>();
    limit->limit_name = path.Name();
    limit->defined_at = PlaceText(tree_, descriptor.place);
    limit->requests_per_unit = configured.requests_per_unit;
    limit->unit = configured.unlimited ? Unit::kUnknown : configured.unit;
    limit->unit_multiplier = configured.unit_multiplier;
    limit->unlimited = configured.unlimited;
    limit->shadow_mode = descriptor.shadow_mode;
    limit->quota_mode = descriptor.quota_mode;
    limit->name = configured.name;
    for (const auto& [name, place] : configured.replaces) limit->replaces.push_back(name);
    limit->metadata = descriptor.metadata;
    limit->counting = overrides_.Of(*domain_, configured.name, limit->limit_name);
    limit->metric_name = metric;
    limit->metric_has_values = values_in_metric || descriptor.detailed_metric;
    if (!limit->unlimited) limit->limit_index = next_index_++;
    matcher_.limits_.push_back(std::move(limit));
    return matcher_.limits_.back().get();
  }

  static void Finish(Level* level) {
    level->by_text.reserve(level->nodes.size());
    for (const auto& node : level->nodes) {
      level->by_text.emplace(node->text, node.get());
      if (!node->has_wildcard) continue;
      level->wildcards.Add(node->text);
      level->of_wildcard.push_back(node.get());
    }
    level->wildcards.Build();
  }

  const DescriptorTree& tree_;
  const Overrides& overrides_;
  Matcher& matcher_;
  const std::string* domain_ = nullptr;
  uint32_t next_index_ = 0;
};

Matcher::Matcher(const DescriptorTree& tree, const Overrides& overrides) {
  Compiler(tree, overrides, this).Run();
}

Matcher::~Matcher() = default;

// ---- Look-ups ----

const Matcher::Level* Matcher::FindDomain(std::string_view domain) const {
  const auto it = domains_.find(ToAbsl(domain));
  return it == domains_.end() ? nullptr : it->second.get();
}

void Matcher::Finding::Begin(const Level& domain, absl::Span<const Entry> entries, BucketKey* key) {
  entries_ = entries;
  key_ = key;
  limit_ = nullptr;
  level_ = entries.empty() || entries.size() > kMaxDescriptorDepth ? nullptr : &domain;
  at_ = 0;
  same_keys_ = true;
  searching_ = false;
}

bool Matcher::Finding::Step(int64_t* budget) {
  while (level_ != nullptr && at_ < entries_.size()) {
    const Entry& entry = entries_[at_];
    if (!searching_) {
      if (*budget <= 0) return false;
      const std::string_view text = Join(entry);
      *budget -= static_cast<int64_t>(text.size());
      const Node* const exact = level_->FindText(text);
      if (exact != nullptr || level_->wildcards.empty()) {
        Descend(exact != nullptr ? exact : level_->AfterSearch(Wildcards::kNone, entry.key));
        continue;
      }
      search_.Begin(level_->wildcards, text);
      searching_ = true;
    }
    if (!search_.Step(budget)) return false;
    searching_ = false;
    Descend(level_->AfterSearch(search_.found(), entry.key));
  }
  // A caller can make one request large; its memory is not kept for ever.
  if (long_.capacity() > (size_t{4} << 10)) std::string().swap(long_);
  return true;
}

void Matcher::Finding::Descend(const Node* node) {
  if (node == nullptr) {
    level_ = nullptr;
    return;
  }
  same_keys_ = same_keys_ && SameKey(entries_[at_].key, node->key);
  nodes_[at_] = node;
  level_ = node->children.get();
  if (++at_ < entries_.size()) return;
  limit_ = node->limit;
  if (limit_ != nullptr) WriteKey();
}

void Matcher::Finding::WriteKey() const {
  WriteOrHash(key_, [this](KeyWriter* writer) {
    if (!same_keys_) writer->Mark('e');
    bool first = true;
    for (size_t i = 0; i < entries_.size(); ++i) {
      if (!same_keys_) {
        writer->Value(entries_[i].key, first);
        first = false;
      }
      if (same_keys_ && nodes_[i]->in_key == Node::InKey::kNothing) continue;
      writer->Value(nodes_[i]->share_threshold ? std::string_view() : entries_[i].value, first);
      first = false;
    }
  });
}

std::string_view Matcher::Finding::Join(const Entry& entry) {
  const size_t size = entry.key.size() + 1 + entry.value.size();
  char* to = buffer_;
  if (size > sizeof(buffer_)) {
    long_.resize(size);
    to = long_.data();
  }
  entry.key.copy(to, entry.key.size());
  to[entry.key.size()] = '_';
  entry.value.copy(to + entry.key.size() + 1, entry.value.size());
  return {to, size};
}

const MatchedLimit* Matcher::Find(const Level& domain, absl::Span<const Entry> entries,
                                  BucketKey* key) {
  Finding finding;
  finding.Begin(domain, entries, key);
  int64_t any = INT64_MAX;
  finding.Step(&any);
  return finding.limit();
}

void Matcher::WriteKey(absl::Span<const Entry> entries, BucketKey* key) {
  WriteOrHash(key, [&](KeyWriter* writer) {
    writer->Mark('e');
    bool first = true;
    for (const Entry& entry : entries) {
      writer->Value(entry.key, first);
      writer->Value(entry.value, false);
      first = false;
    }
  });
}

std::string Matcher::MetricName(std::string_view domain, absl::Span<const Entry> entries) const {
  std::string detailed(domain), shared(domain), valued(domain);
  bool any_shared = false;
  const Node* node = nullptr;
  const Level* level = FindDomain(domain);
  for (const Entry& entry : entries) {
    if (level == nullptr) break;
    const std::string text = absl::StrCat(ToAbsl(entry.key), "_", ToAbsl(entry.value));
    node = level->FindText(text);
    const uint32_t number = node == nullptr ? level->wildcards.Find(text) : Wildcards::kNone;
    const bool by_wildcard = number != Wildcards::kNone;
    if (node == nullptr) node = level->AfterSearch(number, entry.key);
    if (node == nullptr) break;
    const std::string key_part = absl::StrCat(ToAbsl(entry.key), "_");
    std::string_view pattern = node->text;
    if (pattern.starts_with(key_part)) pattern.remove_prefix(key_part.size());
    const bool is_shared = by_wildcard && node->share_threshold;
    any_shared = any_shared || is_shared;
    const bool bare = !by_wildcard && node->text == entry.key;
    std::string_view value = entry.value;
    if (is_shared || (by_wildcard && !node->value_to_metric)) value = pattern;
    if (bare && !node->value_to_metric) value = {};

    const auto append = [&](std::string* name, std::string_view one) {
      absl::StrAppend(name, ".", ToAbsl(entry.key));
      if (!one.empty()) absl::StrAppend(name, "_", ToAbsl(one));
    };
    absl::StrAppend(&detailed, ".", key_part, ToAbsl(entry.value));
    append(&shared, is_shared ? pattern : entry.value);
    append(&valued, value);
    level = node->children.get();
  }
  if (node == nullptr || !node->detailed_metric) return valued;
  return any_shared ? shared : detailed;
}

// ---- Tables ----

const Matcher* MatcherOf(const limits::LimitTable& table) {
  return static_cast<const Matcher*>(table.envoy_companion());
}

const limits::Limit* LimitOf(const limits::LimitTable& table, const MatchedLimit& match) {
  if (match.limit_index == MatchedLimit::kUncounted) return nullptr;
  return table.envoy_limits()[match.limit_index];
}

}  // namespace sluice::envoy
