// The lines of the audit log, and its file under log rotation.
#include "server/access/audit_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "tests/support/full_disk.h"
#include "tests/unit/config/temp_dir.h"

namespace {
int synced = 0;
}  // namespace

// Counts the waits for the disk, in the place of libc's.
extern "C" int fdatasync(int) {
  ++synced;
  return 0;
}

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
  record.actor = "subject CN=ops";
  record.peer = "10.0.0.1:4711";
  record.call = "PutLimit";
  record.request = "{\"limit\":{\"name\":\"api\"}}";
  record.after = "{\"name\":\"api\"}";
  return record;
}

TEST(AuditLogTest, LineHasAllOfTheRecord) {
  EXPECT_EQ(AuditLog::LineOf(Put(), kWallNs),
            "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"client\":\"ops\","
            "\"actor\":\"subject CN=ops\",\"peer\":\"10.0.0.1:4711\",\"call\":\"PutLimit\","
            "\"request\":{\"limit\":{\"name\":\"api\"}},\"before\":null,"
            "\"after\":{\"name\":\"api\"},\"outcome\":\"OK\",\"error\":null}\n");
}

TEST(AuditLogTest, LineOfAFailureIsOneLineOfJson) {
  AuditRecord record;
  record.peer = "unix:";
  record.call = "ResetKey";
  record.outcome = absl::NotFoundError("no \"lim\xC3\xAFt\"\n\\ \xff");
  EXPECT_EQ(
      AuditLog::LineOf(record, kWallNs),
      "{\"time\":\"2023-11-14T22:13:20.123456Z\",\"client\":null,\"actor\":null,"
      "\"peer\":\"unix:\","
      "\"call\":\"ResetKey\",\"request\":null,\"before\":null,\"after\":null,"
      "\"outcome\":\"NOT_FOUND\",\"error\":\"no \\\"lim\xC3\xAFt\\\"\\u000a\\\\ \xEF\xBF\xBD\"}\n");
}

TEST(AuditLogTest, LineOfAChangeThatIsAboutToBeMadeHasNoOutcome) {
  AuditRecord record = Put();
  record.started = true;
  EXPECT_THAT(AuditLog::LineOf(record, kWallNs),
              ::testing::EndsWith("\"outcome\":\"STARTED\",\"error\":null}\n"));
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

TEST(AuditLogTest, ActorIsWhatTheConnectionProves) {
  EXPECT_EQ(ActorOf({.subject = "CN=ops,O=Example", .uris = {"spiffe://test/ops"}}),
            "subject CN=ops,O=Example");
  EXPECT_EQ(ActorOf({.dns_names = {"ops.example"}, .uris = {"spiffe://test/ops"}}),
            "URI spiffe://test/ops");
  EXPECT_EQ(ActorOf({.dns_names = {"ops.example"}}), "DNS ops.example");
  EXPECT_EQ(ActorOf({.uid = 0}), "uid 0");
  EXPECT_EQ(ActorOf({}), "");
}

TEST(AuditLogTest, WriteWaitsForTheDiskAndAppendDoesNot) {
  const config::TempDir dir;
  const common::SystemClock clock;
  auto log = AuditLog::Open(dir.Path("audit"), clock);
  ASSERT_TRUE(log.ok()) << log.status();
  const int before = synced;
  ASSERT_TRUE((*log)->Append(Put()).ok());
  EXPECT_EQ(synced, before);
  ASSERT_TRUE((*log)->Write(Put()).ok());
  EXPECT_EQ(synced, before + 1);
}

TEST(AuditLogTest, LineAfterAHalfOneHasALineOfItsOwn) {
  const config::TempDir dir;
  const common::SystemClock clock;
  const std::string path = dir.Path("audit");
  const auto open_log = [&] { return std::move(AuditLog::Open(path, clock)).value(); };
  std::unique_ptr<AuditLog> log = open_log();
  {
    const testing::FullDisk full(10);
    EXPECT_FALSE(log->Write(Put()).ok());
  }
  ASSERT_EQ(TextOf(path), "{\"time\":\"2");
  ASSERT_TRUE(log->Write(Put()).ok());
  ASSERT_TRUE(log->Write(Put()).ok());
  {
    const testing::FullDisk full(TextOf(path).size() + 10);
    EXPECT_FALSE(log->Append(Put()).ok());
  }
  // A server that starts with the file knows it too.
  log = open_log();
  ASSERT_TRUE(log->Append(Put()).ok());
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5u);
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool half = i == 0 || i == 3;
    EXPECT_EQ(lines[i].substr(0, 10), "{\"time\":\"2");
    EXPECT_EQ(lines[i].back(), half ? '2' : '}') << lines[i];
  }
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
