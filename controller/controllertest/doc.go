// SPDX-License-Identifier: MPL-2.0

// Package controllertest tests controllers. Service is a resource service in
// memory, with the rules of the registered types and without a network.
//
//	synctest.Test(t, func(t *testing.T) {
//		s := controllertest.New(t, resource.Registration{Type: serviceType, Message: &pb.Service{}})
//		s.Write(serviceType, "web", &pb.Service{})
//
//		_, err := s.Reconcile(reports, resource.ID(serviceType, "web")) // one step
//
//		s.Start(controller.Config{}, reports) // a runtime, until the end of the test
//		s.Eventually(func() error { return check(s.Get(resource.ID(reportType, "web"))) })
//	})
//
// # Time
//
// The clock is that of testing/synctest. In a bubble of synctest, backoff,
// resync and RequeueAfter take no real time, and synctest.Wait returns when all
// controllers have processed all events. All methods of this package also work
// without a bubble.
//
// # Shared results
//
// The client returns copies. At the end of a test, Service compares each
// resource that a watch has sent with its copy, and reports a controller that
// has changed a cached resource.
//
// # Leadership
//
// Election is a controller.Elector for several runtimes, whose leader the test
// chooses.
package controllertest
