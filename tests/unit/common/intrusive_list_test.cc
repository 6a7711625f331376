#include "common/intrusive_list.h"

#include <string>

#include "gtest/gtest.h"

namespace sluice::common {
namespace {

struct All;
struct Some;

struct Item : ListLink<Item, All>, ListLink<Item, Some> {
  explicit Item(char name) : name(name) {}
  const char name;
};

template <typename Tag>
std::string Names(const IntrusiveList<Item, Tag>& list) {
  std::string names;
  for (const Item* item = list.front(); item != nullptr; item = list.Next(*item)) {
    names.push_back(item->name);
  }
  return names;
}

class IntrusiveListTest : public ::testing::Test {
 protected:
  Item a_{'a'}, b_{'b'}, c_{'c'};
  IntrusiveList<Item, All> all_;
};

TEST_F(IntrusiveListTest, KeepsElementsInOrder) {
  EXPECT_TRUE(all_.empty());
  all_.PushBack(b_);
  all_.PushFront(a_);
  all_.PushBack(c_);
  EXPECT_EQ(Names(all_), "abc");
  EXPECT_EQ(all_.PopFront().name, 'a');
  EXPECT_EQ(Names(all_), "bc");
}

TEST_F(IntrusiveListTest, RemovesElementsAtEachPosition) {
  for (Item* removed : {&a_, &b_, &c_}) {
    for (Item* item : {&a_, &b_, &c_}) all_.PushBack(*item);
    all_.Remove(*removed);
    EXPECT_FALSE(all_.Contains(*removed));
    all_.PushBack(*removed);
    EXPECT_EQ(Names(all_).back(), removed->name);
    EXPECT_EQ(Names(all_).size(), 3u);
    while (!all_.empty()) all_.PopFront();
  }
}

TEST_F(IntrusiveListTest, AnElementCanBeInSeveralLists) {
  IntrusiveList<Item, Some> some;
  all_.PushBack(a_);
  all_.PushBack(b_);
  some.PushFront(b_);
  all_.Remove(b_);
  EXPECT_EQ(Names(all_), "a");
  EXPECT_EQ(Names(some), "b");
  EXPECT_FALSE(some.Contains(a_));
}

}  // namespace
}  // namespace sluice::common
