// Package registry is the published catalog of an owner. A program that publishes services
// from data of its own makes a [Registry] with [New], fills it with Set, Upsert and Delete
// from any number of goroutines, and gives it to an owner.Server, which sends each consumer the
// updates of a [Subscription]. Package source fills a registry from several origins.
//
// The catalog is one immutable version at a time. A writer makes the next version, which shares
// everything that has not changed. A reader of a version needs no lock, and a subscriber that has one
// version is sent only the difference to a newer one:
//
//   - a [Subscription] is the version that its subscriber was told last. It begins with an
//     empty version: so the subscriber is told the whole catalog, then its end, and then changes.
//     A slow subscriber is told each service that has changed once, in its latest version;
//   - a policy is a version with another verdict on each service, and so is told as changes,
//     to each class of consumers by what is different for it ([Registry.SetPolicy]);
//   - a consumer that comes back sends digests of what it holds, and begins with a version that
//     has the same ([Subscription.Resume]);
//   - a registry that is not available is a version that says so ([Registry.SetUnavailable]).
//
// Services are valid: Set and Upsert fail for one that is not (see
// federation.Service.Validate), and change nothing then. The registry has each service once,
// in the form in which v1alpha2 sends it; UpdateEncoded is for programs that
// remember what they have published.
package registry
