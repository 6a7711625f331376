// The lines of the audit log, and its file under log rotation.
#include "server/access/audit_log.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "common/clock.h"
#include "tests/unit/config/temp_dir.h"

namespace sluice::access {
namespace {

constexpr int64_t kWallNs = 1'700'000'000'123'456'000;

std::string TextOf(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

AuditRecord Put() {
  AuditRecord record;
  record.client = "ops";
  record.peer = "10.0.0.1:4711";
  record.call = "PutLimit";
  record.request = "{\"limit\":{\"name\":\"api\"}}";
  record.after = "{\"name\":\"api\"}";
  return record;
}

TEST(AuditLogTest, LineHasAllOfTheRecord) {
  EXPECT_EQ(AuditLog::LineOf(Put(), kWallNs),
            "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"client\":\"ops\","
            "\"peer\":\"10.0.0.1:4711\",\"call\":\"PutLimit\","
            "\"request\":{\"limit\":{\"name\":\"api\"}},\"before\":null,"
            "\"after\":{\"name\":\"api\"},\"outcome\":\"OK\",\"error\":null}\n");
}

TEST(AuditLogTest, LineOfAFailureIsOneLineOfJson) {
  AuditRecord record;
  record.peer = "unix:";
  record.call = "ResetKey";
  record.outcome = absl::NotFoundError("no \"limit\"\n\\ \xff");
  EXPECT_EQ(AuditLog::LineOf(record, kWallNs),
            "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"client\":null,\"peer\":\"unix:\","
            "\"call\":\"ResetKey\",\"request\":null,\"before\":null,\"after\":null,"
            "\"outcome\":\"NOT_FOUND\",\"error\":\"no \\\"limit\\\"\\u000a\\\\ \\u00ff\"}\n");
}

TEST(AuditLogTest, AppendsAndFollowsRotation) {
  const config::TempDir dir;
  const common::SystemClock clock;
  dir.Write("audit", "before\n");
  const std::string path = dir.Path("audit");
  auto log = AuditLog::Open(path, clock);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_TRUE((*log)->Write(Put()).ok());
  EXPECT_EQ(TextOf(path).substr(0, 16), "before\n{\"time\":\"");
  // As logrotate does it: by rename, by removal, and by truncation.
  dir.Rename("audit", "audit.1");
  ASSERT_TRUE((*log)->Write(Put()).ok());
  EXPECT_EQ(TextOf(path).substr(0, 9), "{\"time\":\"");
  ASSERT_EQ(std::remove(path.c_str()), 0);
  ASSERT_TRUE((*log)->Write(Put()).ok());
  dir.Write("audit", "");
  ASSERT_TRUE((*log)->Write(Put()).ok());
  const std::string text = TextOf(path);
  EXPECT_EQ(text.substr(0, 9), "{\"time\":\"");
  EXPECT_EQ(text.find('\n'), text.size() - 1);
}

TEST(AuditLogTest, NewFileIsNotReadableByOthers) {
  const config::TempDir dir;
  const common::SystemClock clock;
  ASSERT_TRUE(AuditLog::Open(dir.Path("audit"), clock).ok());
  struct stat made = {};
  ASSERT_EQ(stat(dir.Path("audit").c_str(), &made), 0);
  EXPECT_EQ(made.st_mode & 07, 0u);
}

TEST(AuditLogTest, FolderThatIsGoneIsAnError) {
  const common::SystemClock clock;
  EXPECT_EQ(AuditLog::Open("/none/audit", clock).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace sluice::access
