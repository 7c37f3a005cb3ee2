// SPDX-License-Identifier: MPL-2.0

// Package controller runs control loops that react to changed resources. A
// controller reconciles the resources of one type: it reads the present state
// and writes what follows from it. The same controller runs inside a server and
// in another process.
//
// One struct declares a controller. New validates it, and Run runs it. The
// following controller computes a Report for each Service from the Checks of
// the service:
//
//	var checksByService = controller.By(checkType, "service", func(_ *pb.Resource, c *pb.Check) []string {
//		return []string{c.ServiceName}
//	})
//
//	var reports = controller.Controller{
//		Name:    "service-report",
//		Managed: serviceType,
//		Watches: []controller.Watch{
//			{Type: checkType, Map: controller.MapNames(serviceOfCheck)},
//			{Type: reportType, Map: controller.MapSameName},
//		},
//		Indexes:    []*controller.Index{checksByService},
//		Events:     []controller.Source{controller.Events("link", links, servicesOfLink)},
//		Initialize: func(ctx context.Context, env *controller.Env) error { return nil },
//		Reconcile:  reconcile,
//		Placement:  controller.LeaderOnly,
//		Resync:     time.Hour,
//		Workers:    2,
//		Retry:      controller.Retry{Min: 10 * time.Millisecond, Max: time.Minute},
//	}
//
//	func reconcile(ctx context.Context, env *controller.Env, id *pb.ID) (controller.Result, error) {
//		service, err := env.Cache.Get(id)
//		if errors.Is(err, resource.ErrNotFound) {
//			return controller.Result{}, nil // deleted
//		}
//		checks, err := env.Cache.Lookup(checksByService, id.Name)
//		...
//		var used controller.References
//		used.Add(checks...)
//		used.Store(report)
//		_, err = env.Client.Write(ctx, &pb.WriteRequest{Resource: report})
//		return controller.Result{}, errors.Join(err,
//			env.WriteStatus(ctx, service, controller.Outcome("Reported", "ChecksRead", err)))
//	}
//
//	rt, err := controller.New(controller.Config{Client: client, Elector: store}, reports)
//	err = rt.Run(ctx)
//
// # Flow
//
// A Runtime watches every type that its controllers declare, and maintains one
// cache per type. Controllers of a runtime share the caches. When all caches
// are in sync, the controllers start. A controller puts the id of every managed
// resource into its queue, and maps every watched resource to ids. From then
// on, each change puts ids into the queue: the changed managed resource, and
// the ids to which a Mapper maps the old and the new state of a watched
// resource. A worker takes an id and calls Reconcile.
//
// A reconciler must depend only on the present state, not on the event. It must
// be idempotent. It may see a cache that is older than its own last write. The
// event of this write then reconciles the resource again. Env.Read and Env.List
// read the acknowledged state.
//
// # Order and blocking
//
// The queue holds each id once. One worker at a time reconciles an id. A change
// during the reconcile puts the id into the queue again. Ids are taken in the
// order in which they were added. Ids that were added by a start or a resync
// come after the ids of changes, but one of eight reconciles is theirs while
// both wait. A failed id is retried with exponential backoff.
//
// A cache shows each change before the controller maps it. A mapper delays the
// cache of its type, so it must not block. Mappers read only the cache.
//
// # Bound references
//
// A computed resource may depend on resources that a mapper does not find any
// more, for example after a reference has moved. References records the
// resources that contributed to a computed one, and stores them in its
// metadata. When one of them changes, the runtime treats this as a change of
// the computed resource too. The type of the computed resource must be managed
// or watched.
//
// # Placement and failures
//
// A controller with the placement LeaderOnly runs while Config.Elector has
// elected this process. When the election ends, the runtime cancels the context
// of the controller and waits for all its functions before it reports the end
// to the Elector. A panic is logged with its stack and counted. A panic or
// error of Reconcile retries the id. A panic or error of another function of a
// controller stops the controller, which starts again after a backoff.
//
// Writes of a former leader must fail. The client of a LeaderOnly controller
// compares the clock with the end of the election before each write. Inside a
// server, the client uses the local Raft store, which refuses writes after the
// loss of leadership. In another process, the election ends before the lease
// expires, but a write may be delayed in the network. A controller that must not
// repeat such a write sends the version that it has read.
//
// # Watches
//
// A watch that ends begins again after a backoff. The cache compares the new
// snapshot with its content, and reports only differences. The cache keeps its
// content while the server is unreachable. If a watch begins again at a server
// that lags, the cache shows an older state until the server has caught up.
//
// # Goroutines
//
// Run starts one goroutine per cache. Each controller that runs has one
// goroutine per watch, source and worker. Run joins all of them. An id that
// waits for a retry has a timer.
package controller
