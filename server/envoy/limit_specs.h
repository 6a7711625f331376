// The limits of Envoy's configuration as ordinary limits of Sluice: their names and parameters.
#ifndef SLUICE_SERVER_ENVOY_LIMIT_SPECS_H_
#define SLUICE_SERVER_ENVOY_LIMIT_SPECS_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/envoy/matcher.h"
#include "server/limits/limit_spec.h"

namespace sluice::envoy {

// The path to a descriptor, which makes the name of its limit: DOMAIN//KEY:VALUE//KEY. Different
// paths have different names: a character that a name may not have, or that would look like a
// separator, is written as @ and two hexadecimal digits (`*` as @2A). A name that would be longer
// than kMaxLimitNameBytes ends with @@ and 16 digits of its SHA-256.
class LimitPath {
 public:
  explicit LimitPath(std::string_view domain);
  // `value` empty: any.
  LimitPath Child(std::string_view key, std::string_view value) const;

  std::string Name() const;

 private:
  LimitPath() = default;
  // Appends a part of a name between two //.
  void Append(std::string_view key, std::string_view value);

  std::string full_;
};

// The limits that count the matcher's, by limit_index.
std::vector<limits::LimitSpec> MakeSpecs(const Matcher& matcher);

}  // namespace sluice::envoy

#endif  // SLUICE_SERVER_ENVOY_LIMIT_SPECS_H_
