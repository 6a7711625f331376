#include "server/config/clients_file.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/bounds.h"
#include "common/strings.h"
#include "server/config/load.h"
#include "server/config/yaml_tree.h"
#include "server/limits/nearest_name.h"
#include "server/limits/notation.h"
#include "server/limits/spec_check.h"

namespace sluice::config {
namespace {

namespace bounds = common::bounds;
using access::Client;
using common::ToAbsl;
using limits::Quoted;
using Kind = YamlNode::Kind;

constexpr std::string_view kFields[] = {"name",
                                        "spiffe_id",
                                        "dns_san",
                                        "uri_san",
                                        "subject",
                                        "token_sha256",
                                        "uid",
                                        "limits",
                                        "domains",
                                        "calls",
                                        "max_calls_per_second",
                                        "max_held_calls",
                                        "max_streams",
                                        "max_new_keys_per_minute",
                                        "max_table_share"};
constexpr std::string_view kCredentialFields =
    "spiffe_id, dns_san, uri_san, subject, token_sha256 or uid";

// What is wrong with a value; nullopt: nothing.
using Advice = std::optional<std::string>;

Advice CheckClientName(std::string_view name) {
  const auto is_good = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("-_.:/@").find(c) != std::string_view::npos;
  };
  if (!name.empty() && name.size() <= bounds::kMaxLimitNameBytes &&
      std::all_of(name.begin(), name.end(), is_good)) {
    return std::nullopt;
  }
  return absl::StrCat("say a name of 1 to ", bounds::kMaxLimitNameBytes,
                      " letters, digits and - _ . : / @");
}

Advice ParseSpiffeId(std::string_view text, Client* client) {
  constexpr absl::string_view kScheme = "spiffe://";
  if (!absl::StartsWith(ToAbsl(text), kScheme) || text.size() == kScheme.size()) {
    return "say a SPIFFE ID, e.g. spiffe://example.org/checkout";
  }
  client->known_by.spiffe_ids.emplace_back(text);
  return std::nullopt;
}

Advice ParseDnsSan(std::string_view text, Client* client) {
  if (text.empty() || text.find('*') != text.npos) {
    return "say a DNS name without wildcards, e.g. checkout.example.org";
  }
  client->known_by.dns_sans.push_back(absl::AsciiStrToLower(ToAbsl(text)));
  return std::nullopt;
}

Advice ParseUriSan(std::string_view text, Client* client) {
  if (text.find(':') == text.npos) return "say a URI, e.g. urn:example:checkout";
  client->known_by.uri_sans.emplace_back(text);
  return std::nullopt;
}

Advice ParseSubject(std::string_view text, Client* client) {
  if (text.find('=') == text.npos) {
    return "say a subject as `openssl x509 -noout -subject -nameopt RFC2253` prints it, e.g. "
           "CN=checkout,O=Example";
  }
  client->known_by.subjects.emplace_back(text);
  return std::nullopt;
}

Advice ParseDigest(std::string_view text, Client* client) {
  access::TokenDigest digest;
  const bool is_hex = std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c));
  });
  if (text.size() != 2 * digest.size() || !is_hex) {
    return "say the SHA-256 of the token as 64 hex digits (printf %s TOKEN | sha256sum)";
  }
  const std::string bytes = absl::HexStringToBytes(ToAbsl(text));
  std::copy(bytes.begin(), bytes.end(), digest.begin());
  if (digest == access::DigestOf("")) {
    return "is the SHA-256 of an empty token; hash the token itself (printf %s TOKEN | sha256sum)";
  }
  client->known_by.tokens.push_back(digest);
  return std::nullopt;
}

Advice ParseUid(std::string_view text, Client* client) {
  uint32_t uid;
  // The largest number means "no user".
  if (!absl::SimpleAtoi(ToAbsl(text), &uid) || uid == std::numeric_limits<uint32_t>::max()) {
    return "say the number of a user (id -u NAME)";
  }
  client->known_by.uids.push_back(uid);
  return std::nullopt;
}

// A credential's field, and its kind in messages about two clients with the same.
struct CredentialField {
  std::string_view name;
  std::string_view form;  // if the field has no value
  Advice (*parse)(std::string_view text, Client* client);
  bool secret = false;  // the value is not shown: it may be a token
};
constexpr CredentialField kCredentials[] = {
    {"spiffe_id", "say a SPIFFE ID, or a list of them", ParseSpiffeId},
    {"dns_san", "say a DNS name, or a list of them", ParseDnsSan},
    {"uri_san", "say a URI, or a list of them", ParseUriSan},
    {"subject", "say a certificate's subject, or a list of them", ParseSubject},
    {"token_sha256", "say the SHA-256 of a token, or a list of them", ParseDigest, true},
    {"uid", "say the number of a user, or a list of them", ParseUid},
};

// Turns one file's tree into clients. Stops at the first problem, which the message locates.
class Reader {
 public:
  explicit Reader(std::string_view filename) : filename_(filename) {}

  absl::StatusOr<std::vector<Client>> Read(const YamlNode& root) {
    constexpr std::string_view kTop[] = {"clients"};
    if (root.kind != Kind::kMap) {
      return Error(root.kind == Kind::kNull ? TextPlace{} : root.place,
                   "begin the file with clients:, a list of callers");
    }
    if (absl::Status s = CheckFields(root, "", kTop); !s.ok()) return s;
    const YamlNode* const list = Find(root, "clients");
    if (list == nullptr || list->kind != Kind::kList) {
      return Error(list == nullptr ? root.place : list->place,
                   "clients: say a list, each client after a dash; [] refuses all callers");
    }
    if (list->items.size() > bounds::kMaxClients) {
      return Error(list->items[bounds::kMaxClients].place,
                   absl::StrCat("clients: there are ", list->items.size(), "; at most ",
                                bounds::kMaxClients));
    }
    std::vector<Client> clients(list->items.size());
    for (size_t i = 0; i < clients.size(); ++i) {
      absl::Status read = ReadClient(list->items[i], absl::StrCat("clients[", i, "]"), &clients[i]);
      if (!read.ok()) return read;
    }
    return clients;
  }

 private:
  absl::Status Error(TextPlace place, std::string_view text) const {
    return ErrorAt(filename_, place, text);
  }

  static const YamlNode* Find(const YamlNode& map, std::string_view name) {
    for (const YamlNode::Entry& entry : map.entries) {
      if (entry.key == name) return &entry.node;
    }
    return nullptr;
  }

  absl::Status CheckFields(const YamlNode& map, std::string_view path,
                           absl::Span<const std::string_view> known) const {
    for (const YamlNode::Entry& entry : map.entries) {
      if (std::find(known.begin(), known.end(), entry.key) != known.end()) continue;
      const std::string_view near = limits::NearestName(entry.key, known);
      return Error(entry.place,
                   absl::StrCat(ToAbsl(path), path.empty() ? "" : ": ", Quoted(entry.key),
                                ": no field has that name; ",
                                near.empty() ? absl::StrCat(known.size() == 1 ? "there is only "
                                                                              : "there are ",
                                                            limits::Listed(known, " and "))
                                             : absl::StrCat("did you mean ", ToAbsl(near), "?")));
    }
    return absl::OkStatus();
  }

  // Calls use(text) with each value of a field that is one value or a list of them.
  template <typename Use>
  absl::Status ForEachValue(const YamlNode& node, const std::string& path, std::string_view form,
                            bool secret, const Use& use) const {
    const absl::Span<const YamlNode> values =
        node.kind == Kind::kList ? absl::MakeConstSpan(node.items) : absl::MakeConstSpan(&node, 1);
    if (values.empty() || values.size() > bounds::kMaxClientEntries) {
      return Error(node.place, absl::StrCat(path, ": has ", values.size(), " entries; ",
                                            ToAbsl(form), ", at most ", bounds::kMaxClientEntries));
    }
    for (size_t i = 0; i < values.size(); ++i) {
      const std::string at = node.kind == Kind::kList ? absl::StrCat(path, "[", i, "]") : path;
      if (values[i].kind != Kind::kValue) {
        return Error(values[i].place, absl::StrCat(at, ": ", ToAbsl(form)));
      }
      const std::string& text = values[i].value;
      const Advice advice = use(std::string_view(text), values[i].place);
      if (!advice.has_value()) continue;
      return Error(
          values[i].place,
          absl::StrCat(at, ": ", secret ? absl::StrCat(text.size(), " characters") : Quoted(text),
                       ": ", *advice));
    }
    return absl::OkStatus();
  }

  absl::Status ReadClient(const YamlNode& node, const std::string& path, Client* client) {
    if (node.kind != Kind::kMap) {
      return Error(node.place, absl::StrCat(path,
                                            ": say a map with name, a credential, limits and "
                                            "calls"));
    }
    if (absl::Status s = CheckFields(node, path, kFields); !s.ok()) return s;
    if (absl::Status s = ReadName(node, path, client); !s.ok()) return s;
    for (const CredentialField& field : kCredentials) {
      if (absl::Status s = ReadCredentials(node, path, field, client); !s.ok()) return s;
    }
    const bool anonymous = client->name == Client::kAnonymous;
    if (anonymous && !client->known_by.empty()) {
      return Error(node.place, absl::StrCat(path,
                                            ": anonymous stands for callers without "
                                            "credentials; give the client another name, or "
                                            "take its credentials out"));
    }
    if (!anonymous && client->known_by.empty()) {
      return Error(node.place,
                   absl::StrCat(path, ": no caller can be recognised as this client; add ",
                                ToAbsl(kCredentialFields)));
    }
    if (absl::Status s = ReadPatterns(node, path, "limits", "limit", &client->limits); !s.ok()) {
      return s;
    }
    if (absl::Status s = ReadPatterns(node, path, "domains", "domain", &client->domains); !s.ok()) {
      return s;
    }
    if (absl::Status s = ReadCalls(node, path, client); !s.ok()) return s;
    for (size_t i = 0; i < access::kClientBounds; ++i) {
      const absl::Status s = ReadBound(node, path, static_cast<access::ClientBound>(i), client);
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

  absl::Status ReadBound(const YamlNode& node, const std::string& path, access::ClientBound bound,
                         Client* client) const {
    const std::string_view field = access::BoundName(bound);
    const YamlNode* const value = Find(node, field);
    if (value == nullptr) return absl::OkStatus();
    // A client without any calls would have none in `calls`.
    const uint64_t least = bound == access::ClientBound::kCallsPerSecond ? 1 : 0;
    const bool share = bound == access::ClientBound::kTableShare;
    const uint64_t greatest = share ? 100 : bounds::kMaxClientBound;
    const std::string form =
        absl::StrCat("say a whole number from ", least, " to ", greatest, share ? " (percent)" : "",
                     ", or leave the field out for no bound");
    const std::string at = absl::StrCat(path, ".", ToAbsl(field));
    if (value->kind != Kind::kValue) return Error(value->place, absl::StrCat(at, ": ", form));
    uint64_t most;
    const bool digits = std::all_of(value->value.begin(), value->value.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    if (!digits || !absl::SimpleAtoi(value->value, &most) || most < least || most > greatest) {
      return Error(value->place, absl::StrCat(at, ": ", Quoted(value->value), ": ", form));
    }
    client->bounds.Set(bound, most);
    return absl::OkStatus();
  }

  absl::Status ReadName(const YamlNode& node, const std::string& path, Client* client) {
    const YamlNode* const name = Find(node, "name");
    if (name == nullptr || name->kind != Kind::kValue) {
      return Error(name == nullptr ? node.place : name->place,
                   absl::StrCat(path, ".name: give the client a name"));
    }
    client->name = name->value;
    Advice advice = CheckClientName(client->name);
    if (client->name == Client::kAdminToken) {
      advice = "stands for the holder of --admin_token_file; give the client another name";
    }
    const auto [first, inserted] = lines_of_names_.emplace(client->name, name->place.line);
    if (!advice && !inserted) {
      advice = absl::StrCat("is also the name of the client in line ", first->second,
                            "; give each client its own");
    }
    if (!advice) return absl::OkStatus();
    return Error(name->place, absl::StrCat(path, ".name: ", Quoted(client->name), ": ", *advice));
  }

  absl::Status ReadCredentials(const YamlNode& node, const std::string& path,
                               const CredentialField& field, Client* client) {
    const YamlNode* const value = Find(node, field.name);
    if (value == nullptr) return absl::OkStatus();
    const auto parse = [&](std::string_view text, TextPlace place) -> Advice {
      if (Advice advice = field.parse(text, client)) return advice;
      // Tokens and DNS names are compared without regard to case.
      const std::string key =
          absl::StrCat(ToAbsl(field.name), " ",
                       field.secret || field.name == "dns_san" ? absl::AsciiStrToLower(ToAbsl(text))
                                                               : std::string(text));
      const auto [first, inserted] = lines_of_credentials_.emplace(key, place.line);
      if (inserted) return std::nullopt;
      return absl::StrCat("is also in line ", first->second,
                          "; a credential stands for one client");
    };
    return ForEachValue(*value, absl::StrCat(path, ".", ToAbsl(field.name)), field.form,
                        field.secret, parse);
  }

  absl::Status ReadPatterns(const YamlNode& node, const std::string& path, std::string_view field,
                            std::string_view of, access::NamePatterns* patterns) const {
    const YamlNode* const value = Find(node, field);
    if (value == nullptr) return absl::OkStatus();
    std::vector<std::string> all;
    const absl::Status read = ForEachValue(
        *value, absl::StrCat(path, ".", ToAbsl(field)),
        absl::StrCat("say a list of ", ToAbsl(of),
                     "s' names, and prefixes with * at the end, e.g. "
                     "[api, \"orders.*\"]"),
        /*secret=*/false, [&](std::string_view text, TextPlace) -> Advice {
          if (text.empty() || text.find('*') < text.size() - 1) {
            return absl::StrCat("say a ", ToAbsl(of), "'s name, or a prefix with * at the end");
          }
          all.emplace_back(text);
          return std::nullopt;
        });
    if (read.ok()) *patterns = access::NamePatterns(all);
    return read;
  }

  absl::Status ReadCalls(const YamlNode& node, const std::string& path, Client* client) const {
    std::vector<std::string_view> names;
    names.reserve(access::kCalls);
    for (size_t i = 0; i < access::kCalls; ++i) {
      names.push_back(access::CallName(static_cast<access::Call>(i)));
    }
    const std::string form = absl::StrCat("say a list of ", limits::Listed(names, " and "));
    const YamlNode* const value = Find(node, "calls");
    if (value == nullptr)
      return Error(node.place, absl::StrCat(path, ".calls: is missing; ", form));
    absl::Status read = ForEachValue(
        *value, absl::StrCat(path, ".calls"), form, /*secret=*/false,
        [&](std::string_view text, TextPlace) -> Advice {
          const auto call = access::FindCall(text);
          if (call.has_value()) {
            client->calls.Add(*call);
            return std::nullopt;
          }
          const std::string_view near = limits::NearestName(text, names);
          return near.empty()
                     ? absl::StrCat("no call has that name; there are ",
                                    limits::Listed(names, " and "))
                     : absl::StrCat("no call has that name; did you mean ", ToAbsl(near), "?");
        });
    if (!read.ok()) return read;
    return CheckTogether(*value, path, *client);
  }

  // That the calls can be made, and that no change of limits goes without credentials.
  absl::Status CheckTogether(const YamlNode& calls, const std::string& path,
                             const Client& client) const {
    using access::Call;
    const auto has = [&](Call call) { return client.calls.Has(call); };
    const bool data = has(Call::kAcquire) || has(Call::kQuery) || has(Call::kRefund) ||
                      has(Call::kSettle) || has(Call::kWatch);
    std::string problem;
    if (has(Call::kForce) && !has(Call::kAcquire)) {
      problem = "force is an option of acquire; add acquire";
    } else if (has(Call::kAdminChange) && client.name == Client::kAnonymous) {
      problem = "anonymous may not have admin_change; say who may, in a client with credentials";
    } else if (data && client.limits.empty() && client.domains.empty()) {
      problem = "name the limits that they are for: limits: [\"*\"] for all, or domains";
    }
    if (problem.empty()) return absl::OkStatus();
    return Error(calls.place, absl::StrCat(path, ".calls: ", problem));
  }

  const std::string filename_;
  absl::flat_hash_map<std::string, int> lines_of_names_;
  absl::flat_hash_map<std::string, int> lines_of_credentials_;
};

}  // namespace

absl::StatusOr<std::vector<Client>> ParseClients(std::string_view text, std::string_view filename) {
  const auto root = ParseYaml(text, filename);
  if (!root.ok()) return root.status();
  return Reader(filename).Read(*root);
}

absl::StatusOr<ClientsFile> LoadClients(const std::string& path) {
  const auto text = ReadWhole(path);
  if (!text.ok()) return text.status();
  auto clients = ParseClients(*text, path);
  if (!clients.ok()) return clients.status();
  return ClientsFile{*std::move(clients), Sha256Hex(*text)};
}

}  // namespace sluice::config
